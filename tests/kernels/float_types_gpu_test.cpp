// FP8, BF16 and FP16 conversions and random numbers of the CPU against those of the GPU, bitwise.
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/random.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/fp8_storage.h"
#include "kernels/quantize/quantize.h"

namespace te::kernels {
namespace {

using testing::TestTensor;

std::vector<uint16_t> all_bf16() {
  std::vector<uint16_t> bits(65536);
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint16_t>(i);
  return bits;
}

// FP32 values of every exponent, including ties: each BF16 value, and values around the midpoint to the next one.
std::vector<float> many_floats() {
  std::vector<float> values;
  for (uint32_t high = 0; high < 65536; ++high)
    for (const uint32_t low : {0x0000u, 0x7fffu, 0x8000u, 0x8001u})
      values.push_back(std::bit_cast<float>(high << 16 | low));
  return values;
}

// FP8 bytes from the GPU, quantized with scale 1 by the aligned and the unaligned kernel.
std::vector<uint8_t> gpu_codes(const Context& gpu, const Tensor& x, DType format) {
  Fp8Storage storage(gpu, format, x.rows(), x.cols(), 1.0f);
  quantize(gpu, {.x = x, .out = storage.output()});
  return storage.read().rowwise;
}

template <class T>
void expect_codes(const std::vector<uint8_t>& actual, const std::vector<float>& values) {
  ASSERT_EQ(actual.size(), values.size());
  int shown = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const uint8_t expected = from_float<T>(values[i]).bits;
    if (actual[i] == expected) continue;
    ADD_FAILURE() << "value " << values[i] << " bits 0x" << std::hex << std::bit_cast<uint32_t>(values[i])
                  << ": the GPU gives 0x" << int{actual[i]} << ", the CPU 0x" << int{expected};
    if (++shown == 16) return;
  }
}

TEST(FloatTypesGpu, EveryBf16ValueToFp8) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  const std::vector<uint16_t> bits = all_bf16();
  std::vector<float> values;
  for (const uint16_t b : bits) values.push_back(to_float(bfloat16{b}));
  for (const Shape shape : {Shape{256, 256}, Shape{65536, 1}}) {  // aligned and unaligned kernel
    TestTensor x(gpu, DType::bf16, shape);
    x.fill_raw(bits.data());
    expect_codes<float8_e4m3>(gpu_codes(gpu, x, DType::e4m3), values);
    expect_codes<float8_e5m2>(gpu_codes(gpu, x, DType::e5m2), values);
  }
}

TEST(FloatTypesGpu, ManyFp32ValuesToFp8AndBf16) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  const std::vector<float> values = many_floats();
  TestTensor x(gpu, DType::f32, {512, 512}), half(gpu, DType::bf16, {512, 512});
  ASSERT_EQ(values.size(), 512u * 512u);
  x.fill_raw(values.data());
  expect_codes<float8_e4m3>(gpu_codes(gpu, x, DType::e4m3), values);
  expect_codes<float8_e5m2>(gpu_codes(gpu, x, DType::e5m2), values);
  cast(gpu, x, half);
  const std::vector<uint8_t> bytes = half.raw();
  int shown = 0;
  for (size_t i = 0; i < values.size() && shown < 16; ++i) {
    uint16_t actual;
    std::memcpy(&actual, bytes.data() + 2 * i, 2);
    if (actual == to_bf16(values[i]).bits) continue;
    ADD_FAILURE() << "bits 0x" << std::hex << std::bit_cast<uint32_t>(values[i]) << ": the GPU gives BF16 0x"
                  << actual << ", the CPU 0x" << to_bf16(values[i]).bits;
    ++shown;
  }
}

TEST(FloatTypesGpu, EveryBf16ValueToFp32) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  const std::vector<uint16_t> bits = all_bf16();
  TestTensor x(gpu, DType::bf16, {65536}), out(gpu, DType::f32, {65536});
  x.fill_raw(bits.data());
  cast(gpu, x, out);
  const std::vector<float> values = out.floats();
  for (size_t i = 0; i < bits.size(); ++i)
    ASSERT_EQ(std::bit_cast<uint32_t>(values[i]), uint32_t{bits[i]} << 16);
}

TEST(FloatTypesGpu, EveryFp16ValueToFp32) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  const std::vector<uint16_t> bits = all_bf16();  // all 16-bit patterns
  TestTensor x(gpu, DType::f16, {65536}), out(gpu, DType::f32, {65536});
  x.fill_raw(bits.data());
  cast(gpu, x, out);
  const std::vector<float> values = out.floats();
  for (size_t i = 0; i < bits.size(); ++i) {
    const float expected = to_float(float16{bits[i]});
    if (std::isnan(expected))
      ASSERT_TRUE(std::isnan(values[i])) << bits[i];
    else
      ASSERT_EQ(std::bit_cast<uint32_t>(values[i]), std::bit_cast<uint32_t>(expected)) << bits[i];
  }
}

// FP32 values with every pattern of the upper 16 bits, and ties of FP16, whose mantissa ends within the lower 16.
TEST(FloatTypesGpu, ManyFp32ValuesToFp16) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  std::vector<float> values = many_floats();
  for (uint32_t code = 0; code < 0x7c00; ++code)
    for (const int step : {-1, 0, 1}) {
      const float low = to_float(float16{static_cast<uint16_t>(code)});
      const float middle = low + (to_float(float16{static_cast<uint16_t>(code + 1)}) - low) / 2;
      values.push_back(step == 0 ? middle : std::nextafter(middle, step < 0 ? 0.0f : 1e9f));
    }
  const auto count = static_cast<int64_t>(values.size());
  TestTensor x(gpu, DType::f32, {count}), half(gpu, DType::f16, {count});
  x.fill_raw(values.data());
  cast(gpu, x, half);
  const std::vector<uint8_t> bytes = half.raw();
  int shown = 0;
  for (size_t i = 0; i < values.size() && shown < 16; ++i) {
    uint16_t actual;
    std::memcpy(&actual, bytes.data() + 2 * i, 2);
    if (actual == to_f16(values[i]).bits) continue;
    ADD_FAILURE() << "bits 0x" << std::hex << std::bit_cast<uint32_t>(values[i]) << ": the GPU gives FP16 0x"
                  << actual << ", the CPU 0x" << to_f16(values[i]).bits;
    ++shown;
  }
}

TEST(FloatTypesGpu, FillNormalMatchesBitwise) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  const Context cpu = Context::cpu();
  const int64_t count = 1000003;
  TestTensor a(gpu, DType::f32, {count}), b(cpu, DType::f32, {count});
  for (const uint64_t first : {uint64_t{0}, uint64_t{77}, (uint64_t{1} << 33) + 5}) {
    fill_normal(gpu, a, 0.02f, 1234, stream_of("layers.0.linear_qkv.weight"), first);
    fill_normal(cpu, b, 0.02f, 1234, stream_of("layers.0.linear_qkv.weight"), first);
    EXPECT_EQ(testing::count_different(a.raw(), b.raw(), 4), 0);
  }
}

TEST(FloatTypesGpu, FillNormalOfARegionMatchesBitwise) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  const Context cpu = Context::cpu();
  const int64_t count = 70001;
  TestTensor a(gpu, DType::f32, {count}), b(cpu, DType::f32, {count});
  for (const int64_t local_cols : {1, 77, 4096}) {
    const ParameterRegion region{.local_cols = local_cols,
                                 .first_local = 3 * local_cols / 2,
                                 .global_row = 1'000'000,
                                 .global_col = 13,
                                 .global_cols = 3 * local_cols + 13};
    fill_normal(gpu, a, 0.02f, 1234, stream_of("w"), region);
    fill_normal(cpu, b, 0.02f, 1234, stream_of("w"), region);
    EXPECT_EQ(testing::count_different(a.raw(), b.raw(), 4), 0);
  }
}

}  // namespace
}  // namespace te::kernels
