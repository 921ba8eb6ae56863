// Quantization with predetermined scales: tensors that overflow are requantized (CPU reference).
#include <bit>
#include <limits>

#include "core/error.h"
#include "kernels/requantize_cases.h"
#include "kernels/scale_update/scale_formula.h"

namespace te::testing {
namespace {

using kernels::requantize_scale;

TEST(Requantize, DependsOnTheAmax) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(requantize_scale(7.0f, 64.0f, 448.0f, 1.0f), 0.0f);  // 448 itself does not saturate
  EXPECT_EQ(requantize_scale(7.125f, 64.0f, 448.0f, 1.0f), 448.0f / 7.125f);
  EXPECT_EQ(requantize_scale(14.0f, 64.0f, 448.0f, 1.0f), 32.0f);
  EXPECT_EQ(requantize_scale(14.0f, 64.0f, 448.0f, 0.5f), 16.0f);
  EXPECT_EQ(requantize_scale(0.0f, 64.0f, 448.0f, 1.0f), 0.0f);
  EXPECT_EQ(requantize_scale(0x1p-100f, std::numeric_limits<float>::max(), 448.0f, 1.0f), 448.0f * 0x1p100f);
  for (const float amax : {inf, std::nanf("")}) EXPECT_EQ(requantize_scale(amax, 64.0f, 448.0f, 1.0f), 0.0f);
}

TEST(Requantize, WorksForEveryProducer) {
  const Context cpu = Context::cpu();
  for (const Producer& producer : requantize_producers()) check_requantize(cpu, producer);
}

// By hand: at scale 64 the value 14 saturates, so the scale becomes 448 / 14 = 32.
TEST(Requantize, ByHand) {
  const Context cpu = Context::cpu();
  TestTensor x(cpu, DType::f32, {1, 4});
  x.fill({14.0f, -1.0f, 0.5f, 0.0f});
  const Producer shape{"by hand", DType::f32, DType::e4m3, 1, 4, {}};
  RequantizeStorage storage(cpu, shape, 64.0f);
  kernels::quantize(cpu, {.x = x, .out = storage.output(true)});
  const Fp8Result result = storage.result();
  EXPECT_EQ(result.rowwise, (Bytes{0x7e, 0xe0, 0x58, 0x00}));  // 448, -32, 16, 0
  EXPECT_EQ(result.scale_inv, 1.0f / 32.0f);
  EXPECT_EQ(result.amax, 14.0f);
}

// Infinity or NaN would give a useless scale: the first result and its counts are kept.
TEST(Requantize, KeepsTheFirstResultWithNonFiniteValues) {
  const Context cpu = Context::cpu();
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    TestTensor x(cpu, DType::f32, {2, 2});
    x.fill({14.0f, bad, 1.0f, 2.0f});
    const Producer shape{"not finite", DType::f32, DType::e4m3, 2, 2, {}};
    RequantizeStorage off(cpu, shape, 64.0f), on(cpu, shape, 64.0f);
    kernels::quantize(cpu, {.x = x, .out = off.output(false)});
    kernels::quantize(cpu, {.x = x, .out = on.output(true)});
    Fp8Result expected = off.result(), actual = on.result();
    EXPECT_EQ(std::bit_cast<uint32_t>(actual.amax), std::bit_cast<uint32_t>(expected.amax));
    actual.amax = expected.amax = 0.0f;
    expect_same(actual, expected);
    EXPECT_EQ(actual.counters.saturated, 1u);
    expect_finalized(on, 64.0f, 1, 0);
  }
}

// Shards of one tensor use the scale of the tensor's largest value, in whichever shard it is.
TEST(Requantize, ShardsAgree) {
  const Context cpu = Context::cpu();
  const Producer p = quantizing_producer(DType::bf16, DType::e4m3, 77, 101);
  const Bytes values = p.run(cpu, {}).at("values");
  const CurrentScalingResult own = quantize_with_current_scaling(p, values),
                             whole = quantize_with_current_scaling(p, values, 0, 10 * own.amax);
  RequantizeStorage storage(cpu, p, own.scale);
  Fp8Output out = storage.output(true);
  out.requantize.all_reduce_amax = [&](const Context&) {
    EXPECT_EQ(*out.requantize.amax(), own.amax);
    *out.requantize.amax() = 10 * own.amax;
  };
  p.run(cpu, out);
  Fp8Result expected = whole.result;
  expected.amax = 10 * own.amax;  // the amax of the full tensor is recorded
  expect_same_quantization(storage.result(), expected);
  expect_finalized(storage, whole.scale, 1, 1);
}

TEST(CurrentScaling, WorksForEveryProducer) {
  const Context cpu = Context::cpu();
  for (const Producer& producer : requantize_producers()) check_current_scaling(cpu, producer);
}

TEST(CurrentScaling, PredictionWorksForEveryProducer) {
  const Context cpu = Context::cpu();
  for (const Producer& producer : requantize_producers()) check_predicted_scale(cpu, producer);
}

// By hand: 448 / 10 = 44.8, so 32; 448 / 20 = 22.4, so 16; and 448 / 13 gives 32 again, as predicted.
TEST(CurrentScaling, PredictionByHand) {
  const Context cpu = Context::cpu();
  const Producer shape{"by hand", DType::f32, DType::e4m3, 1, 4, {}};
  RequantizeStorage storage(cpu, shape, 64.0f);
  const auto quantize = [&](float largest, float scale, unsigned times, unsigned requantized) {
    TestTensor x(cpu, DType::f32, {1, 4});
    x.fill({largest, -1.0f, 0.5f, 0.0f});
    kernels::quantize(cpu, {.x = x, .out = storage.predicted_scale_output()});
    EXPECT_EQ(storage.result().scale_inv, 1.0f / scale) << largest;
    EXPECT_EQ(storage.found(), (std::vector<float>{scale, scale, largest}));
    expect_finalized(storage, scale, times, requantized);
  };
  quantize(10.0f, 32.0f, 1, 1);                                          // there is no prediction yet
  EXPECT_EQ(storage.result().rowwise, (Bytes{0x7a, 0xe0, 0x58, 0x00}));  // 320, -32, 16, 0
  quantize(13.0f, 32.0f, 2, 1);
  quantize(20.0f, 16.0f, 3, 2);
  EXPECT_EQ(storage.result().rowwise, (Bytes{0x7a, 0xd8, 0x50, 0x00}));  // 320, -16, 8, 0
  quantize(std::numeric_limits<float>::infinity(), 1.0f, 4, 3);
  quantize(13.0f, 32.0f, 5, 4);
}

// By hand: 448 / 14 = 32. All zeros give the scale 1.
TEST(CurrentScaling, ByHand) {
  const Context cpu = Context::cpu();
  const Producer shape{"by hand", DType::f32, DType::e4m3, 1, 4, {}};
  const float inf = std::numeric_limits<float>::infinity();
  const std::map<float, Bytes> cases{
      {14.0f, {0x7e, 0xe0, 0x58, 0x00}}, {0.0f, {0, 0, 0, 0}}, {inf, {0x7e, 0xb8, 0x30, 0x00}}};
  RequantizeStorage storage(cpu, shape, 64.0f);
  for (const auto& [largest, bytes] : cases) {
    TestTensor x(cpu, DType::f32, {1, 4});
    x.fill(largest == 0.0f ? std::vector<float>(4) : std::vector<float>{largest, -1.0f, 0.5f, 0.0f});
    kernels::quantize(cpu, {.x = x, .out = storage.current_scaling_output()});
    const float scale = largest == 14.0f ? 32.0f : 1.0f;
    EXPECT_EQ(storage.result().rowwise, bytes) << largest;
    EXPECT_EQ(storage.result().scale_inv, 1.0f / scale);
    EXPECT_EQ(storage.found(), (std::vector<float>{scale, scale, largest}));
  }
}

// Shards of one tensor use the scale of the tensor's largest value, in whichever shard it is.
TEST(CurrentScaling, ShardsAgree) {
  const Context cpu = Context::cpu();
  const Producer p = quantizing_producer(DType::bf16, DType::e4m3, 77, 101);
  const Bytes values = p.run(cpu, {}).at("values");
  const CurrentScalingResult own = quantize_with_current_scaling(p, values),
                             whole = quantize_with_current_scaling(p, values, 0, 10 * own.amax);
  RequantizeStorage storage(cpu, p, 1.0f);
  Fp8Output out = storage.current_scaling_output();
  out.requantize.all_reduce_amax = [&](const Context&) {
    EXPECT_EQ(*out.requantize.amax(), own.amax);
    *out.requantize.amax() = 10 * own.amax;
  };
  p.run(cpu, out);
  Fp8Result expected = whole.result;
  expected.amax = 10 * own.amax;
  expect_same_quantization(storage.result(), expected);
  EXPECT_EQ(storage.found(), (std::vector<float>{whole.scale, whole.scale, 10 * own.amax}));
}

TEST(Requantize, NeedsData) {
  const Context cpu = Context::cpu();
  const Producer p = quantizing_producer(DType::f32, DType::e4m3, 2, 2);
  RequantizeStorage storage(cpu, p, 1.0f);
  Fp8Output out = storage.output(true);
  out.rowwise = out.columnwise = {};
  EXPECT_THROW(p.run(cpu, out), InternalError);
}

}  // namespace
}  // namespace te::testing
