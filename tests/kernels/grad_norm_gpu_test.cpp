// CUDA gradient norm: exact sums of integers, double precision, determinism; clipping equals the CPU reference.
#include "kernels/grad_norm/grad_norm.h"

#include <cmath>
#include <limits>

#include "testing/testing.h"

namespace te::kernels {
namespace {

using testing::TestTensor;

float sum(const Context& context, const std::vector<float>& values, float start = 0.0f, int64_t offset = 0) {
  const int64_t size = static_cast<int64_t>(values.size());
  TestTensor x(context, DType::f32, {size}), out(context, DType::f32, {1});
  TestTensor scratch(context, DType::f32, {sum_of_squares_scratch_elements()});
  x.fill(values);
  out.fill({start});
  sum_of_squares(context, x.get().view({size, 1}).slice_rows(offset, size - offset), out, scratch);
  return out.floats()[0];
}

TEST(SumOfSquaresGpu, CountsEveryElementOnce) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  // Sizes around one vector, one block, one iteration of the grid (1024 * 256 * 16 elements) and two; below 2^24, so
  // that every sum is exact.
  for (int64_t n : {1, 3, 5, 1023, 4096, 100'003, 1'048'577, 4'194'304 + 7, 8'388'608 + 5}) {
    std::vector<float> values(static_cast<size_t>(n), 1.0f);
    EXPECT_EQ(sum(gpu, values), static_cast<float>(n));
    values.back() = 3.0f;
    EXPECT_EQ(sum(gpu, values, 4.0f), static_cast<float>(n + 12));
  }
  EXPECT_EQ(sum(gpu, std::vector<float>(50'000, 1.0f), 0.0f, 1), 49'999.0f);  // unaligned
}

TEST(SumOfSquaresGpu, MatchesDoublePrecisionAndRepeats) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  const std::vector<float> values = testing::normal_values(3'000'001, 5, 0.01f);
  double expected = 0;
  for (float x : values) expected += static_cast<double>(x) * static_cast<double>(x);
  const float first = sum(gpu, values);
  EXPECT_NEAR(first / expected, 1.0, 2e-7);  // little more than the rounding of the total to FP32
  for (int repeat = 0; repeat < 5; ++repeat) EXPECT_EQ(sum(gpu, values), first);
}

TEST(SumOfSquaresGpu, NonFiniteReachesTheSum) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  std::vector<float> values(5001, 1.0f);
  for (size_t where : {size_t{0}, size_t{4321}, values.size() - 1}) {
    std::vector<float> bad = values;
    bad[where] = -std::numeric_limits<float>::infinity();
    EXPECT_EQ(sum(gpu, bad), std::numeric_limits<float>::infinity());
    bad[where] = std::nanf("");
    EXPECT_TRUE(std::isnan(sum(gpu, bad)));
    bad[where] = 1e30f;
    EXPECT_EQ(sum(gpu, bad), std::numeric_limits<float>::infinity());
  }
}

TEST(SumOfSquaresGpu, AddsCountedGranulesOnly) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  // Sums of integers are exact. Offsets break the alignment; flags are relative to the start of the part.
  for (int64_t n : {1, 127, 129, 100'003, 4'194'304 + 7}) {
    for (int64_t offset : {0, 1}) {
      TestTensor x(gpu, DType::f32, {n + offset, 1}), out(gpu, DType::f32, {1});
      TestTensor scratch(gpu, DType::f32, {sum_of_squares_scratch_elements()});
      TestTensor flags(gpu, DType::u8, {granules_of(n)});
      std::vector<uint8_t> bytes(static_cast<size_t>(granules_of(n)));
      std::vector<float> values(static_cast<size_t>(n + offset), 1.0f);
      double expected = 3.0;
      for (int64_t i = 0; i < n; ++i) {
        const bool counted = i / kAdamWGranule % 3 != 0;
        bytes[static_cast<size_t>(i / kAdamWGranule)] = counted ? kGranuleCounted : kGranuleDecays;
        expected += counted ? 1.0 : 0.0;
      }
      values[static_cast<size_t>(offset)] = std::nanf("");  // in granule 0, which is not counted
      x.fill(values);
      flags.fill_raw(bytes.data());
      out.fill({3.0f});
      sum_of_squares(gpu, x.get().slice_rows(offset, n), out, scratch, flags);
      EXPECT_EQ(out.floats()[0], static_cast<float>(expected)) << n << " " << offset;
    }
  }
  // With all granules counted, the result is bitwise equal to a call without flags.
  const std::vector<float> values = testing::normal_values(300'001, 5);
  TestTensor x(gpu, DType::f32, {300'001}), out(gpu, DType::f32, {1});
  TestTensor scratch(gpu, DType::f32, {sum_of_squares_scratch_elements()});
  TestTensor flags(gpu, DType::u8, {granules_of(300'001)});
  x.fill(values);
  out.fill({0.0f});
  flags.fill_raw(std::vector<uint8_t>(static_cast<size_t>(granules_of(300'001)), kGranuleCounted).data());
  sum_of_squares(gpu, x, out, scratch, flags);
  EXPECT_EQ(out.floats()[0], sum(gpu, values));
}

TEST(ClipCoefficientGpu, EqualsTheReference) {
  TE_REQUIRE_GPU();
  const Context cpu = Context::cpu(), gpu = Context::cuda(0);
  const auto clip = [](const Context& context, float total, float limit, const float* loss) {
    TestTensor sum(context, DType::f32, {1}), loss_tensor(context, DType::f32, {1});
    TestTensor norm(context, DType::f32, {1}), multiplier(context, DType::f32, {1});
    TestTensor skip(context, DType::i32, {1});
    sum.fill({total});
    if (loss != nullptr) loss_tensor.fill({*loss});
    clip_coefficient(context, {.sum_of_squares = sum,
                               .loss = loss != nullptr ? loss_tensor.get() : Tensor{},
                               .clip = limit,
                               .largest_loss = 3.0f,
                               .grad_norm = norm,
                               .multiplier = multiplier,
                               .skip = skip});
    // The payload of a NaN norm is unspecified, so NaN is only compared as NaN; everything else by value.
    const float value = norm.floats()[0];
    return std::vector{std::isnan(value) ? -1.0f : value, multiplier.floats()[0], skip.floats()[0]};
  };
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  const float losses[] = {2.5f, 3.0f, 3.5f, infinity, -infinity, nan};
  for (float total : {0.0f, 0.3f, 1.0f, 16.0f, 1.7e37f, infinity, nan}) {
    for (float limit : {0.0f, 0.5f, 1.0f, 1e30f}) {
      EXPECT_EQ(clip(cpu, total, limit, nullptr), clip(gpu, total, limit, nullptr)) << total << " " << limit;
      for (const float& loss : losses)
        EXPECT_EQ(clip(cpu, total, limit, &loss), clip(gpu, total, limit, &loss))
            << total << " " << limit << " " << loss;
    }
  }
}

}  // namespace
}  // namespace te::kernels
