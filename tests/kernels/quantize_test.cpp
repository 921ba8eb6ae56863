// CPU quantization against its definition: the nearest FP8 code of the clamped product, found by search.
#include "kernels/quantize/quantize.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/fp8_storage.h"

namespace te::kernels {
namespace {

using testing::TestTensor;

struct Size {
  int64_t rows, cols;
};
const Size kSizes[] = {{1, 1}, {33, 17}, {64, 128}, {130, 70}, {257, 48}};

// Nearest finite code, found by search; ties go to the even code.
template <class T>
uint8_t nearest_code(double scaled) {
  constexpr int kMaxCode = dtype_of<T>() == DType::e4m3 ? 0x7e : 0x7b;
  const double magnitude = std::min(std::abs(scaled), double(fp8_max(dtype_of<T>())));
  int best = 0;
  double best_distance = std::numeric_limits<double>::infinity();
  for (int code = 0; code <= kMaxCode; ++code) {
    const double distance = std::abs(magnitude - double(to_float(T{static_cast<uint8_t>(code)})));
    if (distance < best_distance || (distance == best_distance && code % 2 == 0))
      best = code, best_distance = distance;
  }
  return static_cast<uint8_t>(best | (std::signbit(scaled) ? 0x80 : 0));
}

template <class T>
void check_against_search(DType input, Size size) {
  const Context context = Context::cpu();
  const float scale = 37.5f;
  TestTensor x(context, input, {size.rows, size.cols});
  x.fill_normal(5, 20.0f / fp8_max(DType::e4m3) * fp8_max(dtype_of<T>()) / 40);
  Fp8Storage storage(context, dtype_of<T>(), size.rows, size.cols, scale);
  TestTensor dbias(context, DType::f32, {size.cols});
  TestTensor scratch(context, DType::f32, {quantize_scratch_elements(size.rows, size.cols)});
  dbias.fill_value(2.0f);
  quantize(context, {.x = x, .out = storage.output(), .dbias = dbias, .scratch = scratch});

  const Fp8Result result = storage.read();
  const std::vector<float> values = x.floats();
  std::vector<double> sums(static_cast<size_t>(size.cols), 2.0), absolute(sums);
  float amax = 0;
  Fp8Counters counters{};
  for (size_t i = 0; i < values.size(); ++i) {
    const float scaled = values[i] * scale;
    const uint8_t code = nearest_code<T>(scaled);
    ASSERT_EQ(result.rowwise[i], code) << values[i];
    amax = std::max(amax, std::abs(values[i]));
    sums[i % size.cols] += values[i];
    absolute[i % size.cols] += std::abs(values[i]);
    counters.saturated += std::abs(scaled) > fp8_max(dtype_of<T>()) ? 1 : 0;
    counters.flushed += values[i] != 0 && (code & 0x7f) == 0 ? 1 : 0;
  }
  EXPECT_EQ(result.columnwise, transposed(result.rowwise, size.rows, size.cols));
  EXPECT_EQ(result.amax, amax);
  EXPECT_EQ(result.scale_inv, 1.0f / scale);
  EXPECT_EQ(result.counters.saturated, counters.saturated);
  EXPECT_EQ(result.counters.flushed, counters.flushed);
  EXPECT_EQ(result.counters.total, values.size());
  const std::vector<float> bias = dbias.floats();
  for (int64_t c = 0; c < size.cols; ++c) EXPECT_NEAR(bias[c], sums[c], 2e-6 * absolute[c]);
}

TEST(Quantize, GivesNearestCodeOfScaledValue) {
  for (const Size size : kSizes) {
    for (const DType input : {DType::f32, DType::bf16}) {
      check_against_search<float8_e4m3>(input, size);
      check_against_search<float8_e5m2>(input, size);
    }
  }
}

TEST(Quantize, CountsSaturationAndFlushes) {
  const Context context = Context::cpu();
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  TestTensor x(context, DType::f32, {1, 8});
  // Scale 2, E4M3: 224 -> 448 fits; 225 -> 450 saturates; 2^-11 -> 2^-10 is half a step and rounds to zero.
  x.fill({224.0f, 225.0f, -1e30f, std::ldexp(1.0f, -11), -std::ldexp(1.0f, -10), 0.0f, inf, nan});
  Fp8Storage storage(context, DType::e4m3, 1, 8, 2.0f, 3.0f);
  quantize(context, {.x = x, .out = storage.output()});
  const Fp8Result result = storage.read();
  EXPECT_EQ(result.rowwise, (std::vector<uint8_t>{0x7e, 0x7e, 0xfe, 0x00, 0x81, 0x00, 0x7e, 0x7f}));
  EXPECT_EQ(result.counters.saturated, 2u);  // only finite values count
  EXPECT_EQ(result.counters.flushed, 1u);
  EXPECT_EQ(result.counters.total, 8u);
  EXPECT_TRUE(std::isnan(result.amax));
}

TEST(Quantize, AmaxIsUpdatedAndOrdersNanAboveInf) {
  const Context context = Context::cpu();
  const float inf = std::numeric_limits<float>::infinity();
  const auto amax_after = [&](std::vector<float> values, float before) {
    TestTensor x(context, DType::bf16, {2, 2});
    x.fill(values);
    Fp8Storage storage(context, DType::e4m3, 2, 2, 1.0f, before);
    quantize(context, {.x = x, .out = {.amax = storage.output().amax}});  // only an amax pass
    return storage.read().amax;
  };
  EXPECT_EQ(amax_after({1, -3, 2, 0}, 0), 3.0f);
  EXPECT_EQ(amax_after({1, -3, 2, 0}, 5), 5.0f);
  EXPECT_EQ(amax_after({1, -inf, 2, 0}, 5), inf);
  EXPECT_TRUE(std::isnan(amax_after({1, -inf, std::nanf(""), 0}, 5)));
  EXPECT_TRUE(std::isnan(amax_after({1, 2, 3, 4}, std::nanf(""))));
}

TEST(Quantize, DoesNotDependOnTheNumberOfThreads) {
  const Context context = Context::cpu();
  TestTensor x(context, DType::bf16, {700, 90});
  x.fill_normal(11, 30.0f);
  const auto with_threads = [&](int threads, std::vector<uint8_t>& bias) {
    const int before = omp_get_max_threads();
    omp_set_num_threads(threads);
    Fp8Storage storage(context, DType::e5m2, 700, 90, 1000.0f);
    TestTensor dbias(context, DType::f32, {90});
    TestTensor scratch(context, DType::f32, {quantize_scratch_elements(700, 90)});
    dbias.fill_value(0);
    quantize(context, {.x = x, .out = storage.output(), .dbias = dbias, .scratch = scratch});
    omp_set_num_threads(before);
    bias = dbias.raw();
    return storage.read();
  };
  std::vector<uint8_t> bias_one, bias_three;
  const Fp8Result one = with_threads(1, bias_one), three = with_threads(3, bias_three);
  expect_same(three, one);
  EXPECT_EQ(bias_one, bias_three);
}

TEST(Quantize, OneLayoutAloneEqualsBoth) {
  const Context context = Context::cpu();
  TestTensor x(context, DType::bf16, {37, 21});
  x.fill_normal(3);
  Fp8Storage both(context, DType::e4m3, 37, 21, 9.0f), rows(context, DType::e4m3, 37, 21, 9.0f);
  Fp8Storage columns(context, DType::e4m3, 37, 21, 9.0f);
  Fp8Output row_output = rows.output(), column_output = columns.output();
  row_output.columnwise = {};
  column_output.rowwise = {};
  quantize(context, {.x = x, .out = both.output()});
  quantize(context, {.x = x, .out = row_output});
  quantize(context, {.x = x, .out = column_output});
  EXPECT_EQ(rows.read().rowwise, both.read().rowwise);
  EXPECT_EQ(columns.read().columnwise, both.read().columnwise);
  EXPECT_EQ(columns.read().rowwise, std::vector<uint8_t>(37 * 21, 0xff));  // not written
}

TEST(Quantize, TransposeKeepsTheBytes) {
  const Context context = Context::cpu();
  for (const DType format : {DType::e4m3, DType::e5m2}) {
    TestTensor q(context, format, {70, 33}), back(context, format, {33, 70});
    std::vector<uint8_t> codes(70 * 33);
    for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i * 7);
    q.fill_raw(codes.data());
    transpose_fp8(context, q, back);
    EXPECT_EQ(back.raw(), transposed(codes, 70, 33));
  }
}

TEST(Quantize, RejectsWrongArguments) {
  const Context context = Context::cpu();
  TestTensor x(context, DType::bf16, {4, 6});
  Fp8Storage storage(context, DType::e4m3, 6, 4, 1.0f);
  EXPECT_THROW(quantize(context, {.x = x, .out = storage.output()}), InternalError);
  EXPECT_THROW(quantize(context, {.x = x}), InternalError);
  Fp8Storage good(context, DType::e4m3, 4, 6, 1.0f);
  Fp8Output no_scale = good.output();
  no_scale.scale = nullptr;
  EXPECT_THROW(quantize(context, {.x = x, .out = no_scale}), InternalError);
  TestTensor dbias(context, DType::f32, {6});
  EXPECT_THROW(quantize(context, {.x = x, .out = good.output(), .dbias = dbias}), InternalError);
}

}  // namespace
}  // namespace te::kernels
