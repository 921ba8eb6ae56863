// Scale state machine against its formulas, for finite and non-finite amax values.
#include "kernels/scale_update/scale_update.h"

#include <cfloat>
#include <cmath>
#include <limits>

#include "testing/testing.h"

namespace te::kernels {
namespace {

using testing::TestTensor;
const float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

// State of n tensors with a ring buffer of `len` entries, all E4M3 by default.
struct State {
  State(const Context& context, int64_t n, int64_t len)
      : context(context),
        amax(context, DType::f32, {n}),
        history(context, DType::f32, {len, n}),
        position(context, DType::i32, {1}),
        scale(context, DType::f32, {n}),
        fp8_max(context, DType::f32, {n}),
        skip(context, DType::i32, {1}) {
    context.zero(history);
    context.zero(position);
    context.zero(skip);
    scale.fill_value(1.0f);
    fp8_max.fill_value(448.0f);
  }
  void update(std::vector<float> values, AmaxAlgo compute = AmaxAlgo::max, int margin = 0) {
    amax.fill(values);
    delayed_scale_update(context, {.amax = amax,
                                   .history = history,
                                   .position = position,
                                   .scale = scale,
                                   .fp8_max = fp8_max,
                                   .margin = margin,
                                   .compute = compute,
                                   .skip = skip.get().as<int32_t>()});
    for (const float value : amax.floats()) EXPECT_EQ(value, 0.0f);
  }
  const Context& context;
  TestTensor amax, history, position, scale, fp8_max, skip;
};

TEST(ScaleUpdate, DelayedHandlesZeroTinyInfAndNan) {
  const Context context = Context::cpu();
  for (const AmaxAlgo compute : {AmaxAlgo::max, AmaxAlgo::most_recent}) {
    State state(context, 6, 3);
    state.scale.fill({7, 7, 7, 7, 7, 7});
    state.fp8_max.fill({448, 448, 448, 448, 57344, 448});
    state.update({0.0f, 1e-38f, kInf, kNan, 3.0f, FLT_MAX}, compute);
    EXPECT_EQ(state.scale.floats(),
              (std::vector<float>{7, FLT_MAX, 7, 7, 57344.0f / 3.0f, 448.0f / FLT_MAX}));
    EXPECT_EQ(state.history.floats(), (std::vector<float>{0, 1e-38f, 0, 0, 3, FLT_MAX,  //
                                                          0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}));
    EXPECT_EQ(state.position.floats()[0], 1.0f);
  }
}

TEST(ScaleUpdate, DelayedMaxUsesTheHistoryAndMostRecentDoesNot) {
  const Context context = Context::cpu();
  State longest(context, 1, 3), recent(context, 1, 3);
  const float amaxes[] = {8, 2, 4, 1, 0.5f, kNan, 0.25f};
  const float maxima[] = {8, 8, 8, 4, 4, 1, 0.5f};         // of the last three, where NaN counts as 0
  const float latest[] = {8, 2, 4, 1, 0.5f, 0.5f, 0.25f};  // NaN keeps the scale
  for (int step = 0; step < 7; ++step) {
    longest.update({amaxes[step]});
    recent.update({amaxes[step]}, AmaxAlgo::most_recent);
    EXPECT_EQ(longest.scale.floats()[0], 448.0f / maxima[step]) << step;
    EXPECT_EQ(recent.scale.floats()[0], 448.0f / latest[step]) << step;
    EXPECT_EQ(longest.position.floats()[0], static_cast<float>((step + 1) % 3));
  }
}

TEST(ScaleUpdate, DelayedInfKeepsTheHistoryFinite) {
  const Context context = Context::cpu();
  State state(context, 1, 2);
  state.update({4});
  state.update({kInf});  // the maximum is still 4
  EXPECT_EQ(state.scale.floats()[0], 112.0f);
  state.update({0});  // the ring holds 0 and 0: the old scale is kept
  EXPECT_EQ(state.scale.floats()[0], 112.0f);
}

TEST(ScaleUpdate, DelayedSkipChangesNothingButAmax) {
  const Context context = Context::cpu();
  State state(context, 2, 2);
  state.update({2, 4});
  const auto history = state.history.raw(), scale = state.scale.raw(), position = state.position.raw();
  state.skip.fill_ints({1});
  state.update({100, kNan});
  EXPECT_EQ(state.history.raw(), history);
  EXPECT_EQ(state.scale.raw(), scale);
  EXPECT_EQ(state.position.raw(), position);
  state.skip.fill_ints({0});
  state.update({1, 1});
  EXPECT_EQ(state.scale.floats(), (std::vector<float>{224, 112}));
}

TEST(ScaleUpdate, MarginHalvesTheScale) {
  const Context context = Context::cpu();
  State state(context, 1, 1);
  state.update({2}, AmaxAlgo::max, 3);
  EXPECT_EQ(state.scale.floats()[0], 28.0f);
}

TEST(ScaleUpdate, CurrentScale) {
  const Context context = Context::cpu();
  TestTensor amax(context, DType::f32, {6}), scale(context, DType::f32, {6});
  amax.fill({0.0f, kInf, kNan, 1e-38f, 3.0f, 448.0f});
  current_scale(context, {.amax = amax, .scale = scale, .fp8_max = 448.0f});
  EXPECT_EQ(scale.floats(), (std::vector<float>{1, 1, 1, FLT_MAX, 448.0f / 3.0f, 1}));
  current_scale(context, {.amax = amax, .scale = scale, .fp8_max = 57344.0f, .margin = 1});
  EXPECT_EQ(scale.floats()[4], 28672.0f / 3.0f);
}

TEST(ScaleUpdate, CurrentScalesAreRoundedDownToPowersOfTwo) {
  const Context context = Context::cpu();
  TestTensor amax(context, DType::f32, {8}), fp8_max(context, DType::f32, {8});
  TestTensor rounded(context, DType::u8, {8}), scale(context, DType::f32, {8});
  amax.fill({0.0f, kInf, kNan, 3.0f, 3.0f, 3.0f, 1e-38f, 7.0f});
  fp8_max.fill({448, 448, 448, 448, 448, 57344, 448, 448});
  const std::vector<uint8_t> flags = {1, 1, 0, 0, 1, 1, 1, 1};
  context.copy_to_device(rounded, flags.data());
  current_scales(context, {.amax = amax, .fp8_max = fp8_max, .power_of_two = rounded, .scale = scale});
  EXPECT_EQ(scale.floats(),
            (std::vector<float>{1, 1, 1, 448.0f / 3.0f, 128, 16384, std::ldexp(1.0f, 126), 64}));
  current_scales(context,
                 {.amax = amax, .fp8_max = fp8_max, .power_of_two = rounded, .scale = scale, .margin = 2});
  EXPECT_EQ(scale.floats(),
            (std::vector<float>{1, 1, 1, 112.0f / 3.0f, 32, 4096, std::ldexp(1.0f, 126), 16}));
}

TEST(ScaleUpdate, CurrentScaleIsStoredInTheState) {
  const Context context = Context::cpu();
  TestTensor found(context, DType::f32, {2}), state(context, DType::f32, {4});
  const auto enter = [&](float amax, float scale) {
    found.fill({amax, scale});
    const float* const from = found.get().as<float>();
    float* const to = state.get().as<float>();
    record_current_scale(context, {.found_amax = from,
                                   .found_scale = from + 1,
                                   .amax = to,
                                   .current_amax = to + 1,
                                   .scale = to + 2,
                                   .scale_inv = to + 3});
    return state.floats();
  };
  state.fill_value(0.0f);
  EXPECT_EQ(enter(3.0f, 128.0f), (std::vector<float>{3, 3, 128, 0x1p-7f}));
  EXPECT_EQ(enter(2.0f, 3.0f), (std::vector<float>{3, 2, 3, 1.0f / 3.0f}));  // maximum of both amax values
  EXPECT_EQ(enter(kInf, 1.0f)[0], kInf);
  EXPECT_TRUE(std::isnan(enter(kNan, 1.0f)[0]));
  EXPECT_TRUE(std::isnan(enter(5.0f, 1.0f)[0]));
  record_current_scale(context,
                       {.found_amax = found.get().as<float>(), .found_scale = found.get().as<float>() + 1});
  EXPECT_EQ(state.floats()[1], 5.0f);
}

}  // namespace
}  // namespace te::kernels
