// Scale updates on the GPU against the CPU over many steps with finite and non-finite amax values, bitwise.
#include "kernels/scale_update/scale_update.h"

#include <cmath>
#include <limits>

#include "core/random.h"
#include "testing/testing.h"

namespace te::kernels {
namespace {

using testing::TestTensor;

// Zeros, tiny values (whose scale overflows), infinities and NaN among ordinary amax values.
std::vector<float> amaxes(int64_t n, int step) {
  std::vector<float> values(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    const float value = std::abs(normal(3, static_cast<uint64_t>(step), static_cast<uint64_t>(i)));
    switch ((i + step) % 11) {
      case 3:
        values[i] = 0.0f;
        break;
      case 5:
        values[i] = 1e-38f;
        break;
      case 7:
        values[i] = std::numeric_limits<float>::infinity();
        break;
      case 9:
        values[i] = std::numeric_limits<float>::quiet_NaN();
        break;
      default:
        values[i] = value * std::ldexp(1.0f, static_cast<int>(i % 20) - 10);
    }
  }
  return values;
}

// Bytes of the whole state after 12 steps, of which the sixth is skipped.
std::vector<uint8_t> state_after_steps(const Context& context, int64_t n, int64_t len, AmaxAlgo compute,
                                       int margin) {
  TestTensor amax(context, DType::f32, {n}), history(context, DType::f32, {len, n});
  TestTensor position(context, DType::i32, {1}), scale(context, DType::f32, {n});
  TestTensor fp8_max(context, DType::f32, {n}), skip(context, DType::i32, {1});
  context.zero(history);
  context.zero(position);
  scale.fill_value(1.0f);
  std::vector<float> formats(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) formats[i] = i % 3 == 0 ? 57344.0f : 448.0f;
  fp8_max.fill(formats);
  std::vector<uint8_t> state;
  for (int step = 0; step < 12; ++step) {
    amax.fill(amaxes(n, step));
    skip.fill_ints({step == 5 ? 1 : 0});
    delayed_scale_update(context, {.amax = amax,
                                   .history = history,
                                   .position = position,
                                   .scale = scale,
                                   .fp8_max = fp8_max,
                                   .margin = margin,
                                   .compute = compute,
                                   .skip = step % 2 == 1 ? skip.get().as<int32_t>() : nullptr});
    for (const TestTensor* tensor : {&amax, &history, &position, &scale}) {
      const std::vector<uint8_t> bytes = tensor->raw();
      state.insert(state.end(), bytes.begin(), bytes.end());
    }
  }
  return state;
}

TEST(ScaleUpdateGpu, DelayedEqualsTheCpu) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0), cpu = Context::cpu();
  for (const int64_t n : {1, 31, 700})
    for (const int64_t len : {1, 5, 1024})
      for (const AmaxAlgo compute : {AmaxAlgo::max, AmaxAlgo::most_recent})
        for (const int margin : {0, 2})
          EXPECT_EQ(testing::count_different(state_after_steps(gpu, n, len, compute, margin),
                                             state_after_steps(cpu, n, len, compute, margin), 4),
                    0)
              << n << " tensors, history " << len;
}

TEST(ScaleUpdateGpu, CurrentEqualsTheCpu) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0), cpu = Context::cpu();
  for (const int64_t n : {1, 333}) {
    const auto run = [&](const Context& context) {
      TestTensor amax(context, DType::f32, {n}), scale(context, DType::f32, {n});
      amax.fill(amaxes(n, 1));
      current_scale(context, {.amax = amax, .scale = scale, .fp8_max = 57344.0f, .margin = 1});
      return scale.raw();
    };
    EXPECT_EQ(run(gpu), run(cpu));
  }
}

// Each tensor's scale from its own amax, then written one after another to the same state.
TEST(ScaleUpdateGpu, CurrentScalesEqualTheCpu) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0), cpu = Context::cpu();
  for (const int64_t n : {1, 333}) {
    const auto run = [&](const Context& context) {
      TestTensor amax(context, DType::f32, {n}), fp8_max(context, DType::f32, {n});
      TestTensor rounded(context, DType::u8, {n}), scale(context, DType::f32, {n});
      TestTensor state(context, DType::f32, {4});
      std::vector<float> limits;
      std::vector<uint8_t> flags;
      for (int64_t i = 0; i < n; ++i) {
        limits.push_back(i % 3 == 0 ? 57344.0f : 448.0f);
        flags.push_back(i % 2 == 0 ? 1 : 0);
      }
      amax.fill(amaxes(n, 2));
      fp8_max.fill(limits);
      context.copy_to_device(rounded, flags.data());
      context.synchronize();
      state.fill_value(0.0f);
      current_scales(
          context, {.amax = amax, .fp8_max = fp8_max, .power_of_two = rounded, .scale = scale, .margin = 1});
      std::vector<uint8_t> all = scale.raw();
      for (int64_t i = 0; i < n; ++i) {
        float* const to = state.get().as<float>();
        record_current_scale(context, {.found_amax = amax.get().as<float>() + i,
                                       .found_scale = scale.get().as<float>() + i,
                                       .amax = to,
                                       .current_amax = to + 1,
                                       .scale = to + 2,
                                       .scale_inv = to + 3});
        const std::vector<uint8_t> bytes = state.raw();
        all.insert(all.end(), bytes.begin(), bytes.end());
      }
      return all;
    };
    EXPECT_EQ(testing::count_different(run(gpu), run(cpu), 4), 0) << n;
  }
}

}  // namespace
}  // namespace te::kernels
