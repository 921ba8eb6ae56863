// Quantization on the GPU against the CPU reference: bytes, amax and counters are bitwise equal.
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/elementwise/elementwise.h"
#include "kernels/fp8_storage.h"
#include "kernels/quantize/quantize.h"
#include "kernels/scale_update/scale_update.h"

namespace te::kernels {
namespace {

using testing::TestTensor;

struct MatrixSize {
  int64_t rows, cols;
};
// Partial tiles in rows, in columns, in both; full tiles, one element, more columns than a tile is wide.
const MatrixSize kSizes[] = {{1, 1},    {1, 64},   {128, 64},   {16, 8},     {144, 72},   {256, 1024},
                             {131, 64}, {128, 67}, {1000, 333}, {2048, 520}, {8192, 256}, {48, 4096}};

// Both backends get the same values; the column sums differ only in the order of additions.
void compare(DType input, DType format, MatrixSize size, const std::vector<float>& values) {
  const Context gpu = Context::cuda(0), cpu = Context::cpu();
  const auto run = [&](const Context& context, std::vector<float>& bias) {
    TestTensor x(context, input, {size.rows, size.cols}), dbias(context, DType::f32, {size.cols});
    TestTensor scratch(context, DType::f32, {quantize_scratch_elements(size.rows, size.cols)});
    x.fill(values);
    dbias.fill_value(1.0f);
    Fp8Storage storage(context, format, size.rows, size.cols, 50.0f, 0.25f);
    quantize(context, {.x = x, .out = storage.output(), .dbias = dbias, .scratch = scratch});
    bias = dbias.floats();
    return storage.read();
  };
  std::vector<float> gpu_bias, cpu_bias;
  const Fp8Result actual = run(gpu, gpu_bias), expected = run(cpu, cpu_bias);
  SCOPED_TRACE(
      fmt::format("{} to {}, [{}, {}]", dtype_name(input), dtype_name(format), size.rows, size.cols));
  expect_same(actual, expected);
  std::vector<double> absolute(static_cast<size_t>(size.cols), 1.0);
  for (size_t i = 0; i < values.size(); ++i) absolute[i % size.cols] += std::abs(values[i]);
  for (int64_t c = 0; c < size.cols; ++c) ASSERT_NEAR(gpu_bias[c], cpu_bias[c], 2e-6 * absolute[c]);
}

TEST(QuantizeGpu, EqualsTheCpu) {
  TE_REQUIRE_GPU();
  for (const MatrixSize size : kSizes) {
    for (const DType input : {DType::f32, DType::bf16}) {
      const std::vector<float> values = testing::normal_values(size.rows * size.cols, 17, 4.0f);
      compare(input, DType::e4m3, size, values);
      compare(input, DType::e5m2, size, values);
    }
  }
}

TEST(QuantizeGpu, EachOutputAlone) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (const MatrixSize size : {MatrixSize{256, 192}, MatrixSize{77, 101}}) {
    TestTensor x(gpu, DType::bf16, {size.rows, size.cols});
    x.fill_normal(5, 3.0f);
    Fp8Storage all(gpu, DType::e4m3, size.rows, size.cols, 20.0f);
    quantize(gpu, {.x = x, .out = all.output()});
    const Fp8Result expected = all.read();
    Fp8Storage row(gpu, DType::e4m3, size.rows, size.cols, 20.0f);
    Fp8Storage column(gpu, DType::e4m3, size.rows, size.cols, 20.0f);
    Fp8Storage amax(gpu, DType::e4m3, size.rows, size.cols, 20.0f);
    Fp8Output row_output = row.output(), column_output = column.output();
    row_output.columnwise = {};
    column_output.rowwise = {};
    quantize(gpu, {.x = x, .out = row_output});
    quantize(gpu, {.x = x, .out = column_output});
    quantize(gpu, {.x = x, .out = {.amax = amax.output().amax}});
    const std::vector<uint8_t> poison(static_cast<size_t>(size.rows * size.cols), 0xff);
    EXPECT_EQ(row.read().rowwise, expected.rowwise);
    EXPECT_EQ(row.read().columnwise, poison);
    EXPECT_EQ(column.read().columnwise, expected.columnwise);
    EXPECT_EQ(column.read().rowwise, poison);
    EXPECT_EQ(amax.read().amax, expected.amax);
    EXPECT_EQ(column.read().counters.flushed, expected.counters.flushed);
  }
}

TEST(QuantizeGpu, AmaxOrdersNanAboveInf) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  const float inf = std::numeric_limits<float>::infinity();
  for (const DType type : {DType::f32, DType::bf16}) {
    const auto amax_after = [&](float first, float last, float before) {
      TestTensor x(gpu, type, {300, 80});
      std::vector<float> values(300 * 80, -1.0f);
      values.front() = first;
      values.back() = last;
      x.fill(values);
      Fp8Storage storage(gpu, DType::e4m3, 300, 80, 1.0f, before);
      quantize(gpu, {.x = x, .out = storage.output()});
      return storage.read().amax;
    };
    EXPECT_EQ(amax_after(1, -3, 0), 3.0f);
    EXPECT_EQ(amax_after(1, -3, 5), 5.0f);
    EXPECT_EQ(amax_after(-inf, 3, 5), inf);
    EXPECT_TRUE(std::isnan(amax_after(inf, std::nanf(""), 5)));
    EXPECT_TRUE(std::isnan(amax_after(1, 2, std::nanf(""))));
  }
}

TEST(QuantizeGpu, IsDeterministic) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  TestTensor x(gpu, DType::bf16, {4096, 320}),
      scratch(gpu, DType::f32, {quantize_scratch_elements(4096, 320)});
  x.fill_normal(8);
  std::vector<uint8_t> first;
  for (int repeat = 0; repeat < 3; ++repeat) {
    TestTensor dbias(gpu, DType::f32, {320});
    dbias.fill_value(0.0f);
    bias_gradient(gpu, x, dbias, scratch);
    if (repeat == 0) first = dbias.raw();
    EXPECT_EQ(dbias.raw(), first);
  }
}

TEST(QuantizeGpu, UnalignedPointersUseTheUnalignedKernel) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  // The shape would allow the aligned kernel, but the base pointer is offset by 2 bytes.
  TestTensor buffer(gpu, DType::bf16, {128 * 64 + 1});
  buffer.fill_normal(6);
  const Tensor x{buffer.get().as<char>() + 2, DType::bf16, {128, 64}};
  Fp8Storage storage(gpu, DType::e4m3, 128, 64, 30.0f);
  quantize(gpu, {.x = x, .out = storage.output()});
  const std::vector<float> values = buffer.floats();
  const Fp8Result result = storage.read();
  for (size_t i = 0; i < 128 * 64; ++i) ASSERT_EQ(result.rowwise[i], to_e4m3(values[i + 1] * 30.0f).bits);
  EXPECT_EQ(result.columnwise, transposed(result.rowwise, 128, 64));
}

TEST(QuantizeGpu, RowSlicesOfALargerTensor) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  // Rows of 20 bytes (FP8) and 40 bytes (bf16): most slices are unaligned, others are aligned.
  for (const MatrixSize size : {MatrixSize{40, 20}, MatrixSize{96, 64}}) {
    for (const int64_t first : {0, 1, 3, 16}) {
      const int64_t rows = 16;
      TestTensor q(gpu, DType::e4m3, {size.rows, size.cols}), out(gpu, DType::e4m3, {size.cols, rows});
      std::vector<uint8_t> codes(static_cast<size_t>(size.rows * size.cols));
      for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i * 2654435761u >> 13);
      q.fill_raw(codes.data());
      transpose_fp8(gpu, q.get().slice_rows(first, rows), out);
      const auto begin = codes.begin() + first * size.cols;
      EXPECT_EQ(out.raw(), transposed({begin, begin + rows * size.cols}, rows, size.cols)) << first;

      TestTensor x(gpu, DType::bf16, {size.rows, size.cols}), amax(gpu, DType::f32, {1});
      std::vector<float> values(codes.size(), 100.0f);  // outside the slice
      for (int64_t i = first * size.cols; i < (first + rows) * size.cols; ++i) values[i] = -1.0f;
      values[static_cast<size_t>((first + rows) * size.cols - 1)] = -2.5f;
      x.fill(values);
      amax.fill_value(0.5f);
      quantize(gpu, {.x = x.get().slice_rows(first, rows), .out = {.amax = amax.get().as<float>()}});
      EXPECT_EQ(amax.floats()[0], 2.5f) << first;
    }
  }
}

// One launch against amax pass, scale and quantization on the CPU: bitwise equal for all values. The larger size uses a
// cluster.
TEST(QuantizeGpu, CurrentScalingInOneLaunch) {
  TE_REQUIRE_GPU();
  const Context cpu = Context::cpu(), gpu = Context::cuda(0);
  const auto check = [&](DType dtype, DType format, Shape shape, float special) {
    SCOPED_TRACE(
        fmt::format("{} to {} {} with {}", dtype_name(dtype), dtype_name(format), shape.str(), special));
    TestTensor expected_x(cpu, dtype, shape), x(gpu, dtype, shape), expected(cpu, format, shape),
        out(gpu, format, shape), expected_found(cpu, DType::f32, {3}), found(gpu, DType::f32, {3});
    std::vector<float> values(static_cast<size_t>(shape.numel()));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 37) * 0.07f - 1.0f;
    if (special == 0.0f) values.assign(values.size(), 0.0f);
    values[values.size() * 2 / 3] = special;
    expected_x.fill(values), x.fill(values), expected_found.fill_value(0.0f);
    const auto part = [](TestTensor& of, int64_t i) {
      return Tensor{of.get().as<float>() + i, DType::f32, {1}};
    };
    Fp8Output amax_only, quantized;
    amax_only.amax = part(expected_found, 0).as<float>();
    quantize(cpu, {.x = expected_x, .out = amax_only});
    current_scale(cpu, {.amax = part(expected_found, 0),
                        .scale = part(expected_found, 1),
                        .fp8_max = fp8_max(format),
                        .margin = 1});
    quantized.rowwise = expected, quantized.scale = part(expected_found, 1).as<float>();
    quantized.scale_inv = part(expected_found, 2).as<float>();
    quantize(cpu, {.x = expected_x, .out = quantized});
    ASSERT_TRUE(quantize_current_scaling(gpu, {.x = x,
                                               .out = out,
                                               .amax = part(found, 0).as<float>(),
                                               .scale = part(found, 1).as<float>(),
                                               .scale_inv = part(found, 2).as<float>(),
                                               .margin = 1}));
    EXPECT_EQ(testing::count_different(out.raw(), expected.raw(), 1), 0);
    for (const size_t i : {0u, 1u, 2u}) {  // the bits of a NaN depend on the backend
      const float want = expected_found.floats()[i], got = found.floats()[i];
      EXPECT_TRUE(got == want || (std::isnan(got) && std::isnan(want)))
          << i << ": " << got << ", not " << want;
    }
  };
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const DType format : {DType::e4m3, DType::e5m2})
      for (const float special : {0.0f, 3e4f, 1e-30f, INFINITY, NAN})
        for (const Shape& shape : {Shape{3, 1096}, Shape{64, 1096}}) check(dtype, format, shape, special);
}

TEST(QuantizeGpu, TransposeFp8) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (const MatrixSize size : kSizes) {
    TestTensor q(gpu, DType::e5m2, {size.rows, size.cols}), out(gpu, DType::e5m2, {size.cols, size.rows});
    std::vector<uint8_t> codes(static_cast<size_t>(size.rows * size.cols));
    for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i * 2654435761u >> 13);
    q.fill_raw(codes.data());
    transpose_fp8(gpu, q, out);
    EXPECT_EQ(out.raw(), transposed(codes, size.rows, size.cols)) << size.rows << " x " << size.cols;
  }
}

}  // namespace
}  // namespace te::kernels
