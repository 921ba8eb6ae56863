// Memory for an Fp8Output in tests, on either backend, and its read-out.
#pragma once

#include <cstring>
#include <memory>
#include <vector>

#include "kernels/quantize/fp8_output.h"
#include "testing/testing.h"

namespace te::kernels {

/// Contents of an Fp8Output as host data.
struct Fp8Result {
  std::vector<uint8_t> rowwise, columnwise;
  float scale_inv = 0, amax = 0;
  Fp8Counters counters{};
};

class Fp8Storage {
 public:
  Fp8Storage(const Context& context, DType format, int64_t rows, int64_t cols, float scale, float amax = 0.0f)
      : rowwise_(context, format, {rows, cols}),
        columnwise_(context, format, {cols, rows}),
        scale_(context, DType::f32, {1}),
        scale_inv_(context, DType::f32, {1}),
        amax_(context, DType::f32, {1}),
        counters_(context, DType::i64, {3}) {
    scale_.fill_value(scale);
    amax_.fill_value(amax);
    context.zero(counters_);
  }

  /// All outputs.
  Fp8Output output() const {
    return {.rowwise = rowwise_.get(),
            .columnwise = columnwise_.get(),
            .scale = scale_.get().as<float>(),
            .scale_inv = scale_inv_.get().as<float>(),
            .amax = amax_.get().as<float>(),
            .counters = counters_.get().as<Fp8Counters>()};
  }

  Fp8Result read() const {
    Fp8Result result;
    result.rowwise = rowwise_.raw();
    result.columnwise = columnwise_.raw();
    result.scale_inv = scale_inv_.floats()[0];
    result.amax = amax_.floats()[0];
    std::memcpy(&result.counters, counters_.raw().data(), sizeof(Fp8Counters));
    return result;
  }

 private:
  testing::TestTensor rowwise_, columnwise_, scale_, scale_inv_, amax_, counters_;
};

/// Transposes the bytes of an FP8 [rows, cols] matrix on the host.
inline std::vector<uint8_t> transposed(const std::vector<uint8_t>& bytes, int64_t rows, int64_t cols) {
  std::vector<uint8_t> result(bytes.size());
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) result[c * rows + r] = bytes[r * cols + c];
  return result;
}

/// Bitwise equality of two results.
inline void expect_same(const Fp8Result& actual, const Fp8Result& expected) {
  EXPECT_EQ(testing::count_different(actual.rowwise, expected.rowwise, 1), 0);
  EXPECT_EQ(testing::count_different(actual.columnwise, expected.columnwise, 1), 0);
  EXPECT_EQ(std::memcmp(&actual.scale_inv, &expected.scale_inv, sizeof(float)), 0);
  EXPECT_EQ(actual.amax, expected.amax);
  EXPECT_EQ(actual.counters.saturated, expected.counters.saturated);
  EXPECT_EQ(actual.counters.flushed, expected.counters.flushed);
  EXPECT_EQ(actual.counters.total, expected.counters.total);
}

}  // namespace te::kernels
