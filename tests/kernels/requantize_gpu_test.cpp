// Requantization on the GPU, against quantization of the same values on the CPU with current scaling.
#include <bit>
#include <limits>

#include "core/device_caps.h"
#include "kernels/requantize_cases.h"

namespace te::testing {
namespace {

/// Producers that the GPU can run.
std::vector<Producer> runnable(std::vector<Producer> all) {
  if (!cuda_caps(0).fp8) std::erase_if(all, [](const Producer& p) { return p.name.starts_with("gemm"); });
  return all;
}

TEST(RequantizeGpu, WorksForEveryProducer) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (const Producer& producer : runnable(requantize_producers())) check_requantize(gpu, producer);
}

std::vector<Producer> large_producers() {
  std::vector<Producer> all;
  for (const DType format : {DType::e4m3, DType::e5m2}) {
    all.push_back(quantizing_producer(DType::bf16, format, 8192, 512));
    all.push_back(norm_producer(NormKind::rms, DType::bf16, format, 8192, 512, true));
    all.push_back(norm_backward_producer(NormKind::layer, DType::bf16, format, 8192, 512));
    for (const bool stored : {false, true}) {
      all.push_back(
          activation_producer(kernels::ActivationKind::swiglu, DType::bf16, format, 8192, 512, stored));
      all.push_back(activation_gradient_producer(kernels::ActivationKind::swiglu, DType::bf16, format, 8192,
                                                 1024, stored));
    }
    all.push_back(rope_producer(DType::bf16, format, 4096, 3, 128));
  }
  // Fused with the GEMM.
  for (const kernels::ActivationKind kind : {kernels::ActivationKind::swiglu, kernels::ActivationKind::gelu})
    all.push_back(gemm_activation_producer(kind, 4000, 1040, 272));
  return all;
}

TEST(RequantizeGpu, WorksWithMoreTilesThanBlocks) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (const Producer& producer : runnable(large_producers())) check_requantize(gpu, producer);
}

TEST(CurrentScalingGpu, WorksForEveryProducer) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (const Producer& producer : runnable(requantize_producers())) {
    check_current_scaling(gpu, producer);
    check_predicted_scale(gpu, producer);
  }
}

TEST(CurrentScalingGpu, WorksWithMoreTilesThanBlocks) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (const Producer& producer : runnable(large_producers())) {
    check_current_scaling(gpu, producer);
    check_predicted_scale(gpu, producer);
  }
}

// Many quantizations one after another without synchronization: each second launch starts while its first launch ends,
// and must not interfere with the next quantization.
TEST(RequantizeGpu, ManyConsecutiveQuantizations) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  constexpr int64_t kRows = 2048, kCols = 1024;
  constexpr int kTensors = 8, kRounds = 25;
  const Producer shape{"many", DType::bf16, DType::e4m3, kRows, kCols, {}};
  std::vector<TestTensor> x;
  std::vector<CurrentScalingResult> own;
  for (int i = 0; i < kTensors; ++i) {
    x.emplace_back(gpu, DType::bf16, Shape{kRows, kCols});
    x.back().fill_normal(30 + i, i % 2 == 0 ? 1.0f : 100.0f);
    own.push_back(quantize_with_current_scaling(shape, x.back().raw()));
  }
  for (const bool current_scaling : {false, true}) {
    std::vector<std::unique_ptr<RequantizeStorage>> storages;
    // Every second tensor overflows the scale of the one before it.
    for (int i = 0; i < kTensors; ++i)
      storages.push_back(
          std::make_unique<RequantizeStorage>(gpu, shape, own[static_cast<size_t>(i / 2 * 2)].scale));
    for (int round = 0; round < kRounds; ++round)
      for (size_t i = 0; i < kTensors; ++i)
        kernels::quantize(gpu, {.x = x[i],
                                .out = current_scaling ? storages[i]->current_scaling_output()
                                                       : storages[i]->output(true)});
    for (size_t i = 0; i < kTensors; ++i) {
      expect_same_quantization(storages[i]->result(), own[i].result);
      expect_finalized(*storages[i], own[i].scale, current_scaling ? 0 : kRounds,
                       !current_scaling && i % 2 == 1 ? kRounds : 0);
    }
  }
}

TEST(RequantizeGpu, KeepsTheFirstResultWithNonFiniteValues) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    const Producer shape{"not finite", DType::bf16, DType::e4m3, 300, 80, {}};
    TestTensor x(gpu, DType::bf16, {300, 80});
    std::vector<float> values(300 * 80, 14.0f);
    values[12345] = bad;
    x.fill(values);
    RequantizeStorage off(gpu, shape, 64.0f), on(gpu, shape, 64.0f);
    kernels::quantize(gpu, {.x = x, .out = off.output(false)});
    kernels::quantize(gpu, {.x = x, .out = on.output(true)});
    Fp8Result expected = off.result(), actual = on.result();
    EXPECT_EQ(std::bit_cast<uint32_t>(actual.amax), std::bit_cast<uint32_t>(expected.amax));
    actual.amax = expected.amax = 0.0f;
    expect_same(actual, expected);
    expect_finalized(on, 64.0f, 1, 0);
  }
}

TEST(RequantizeGpu, ShardsAgree) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (const Producer& p : {quantizing_producer(DType::bf16, DType::e4m3, 256, 128),
                            norm_producer(NormKind::rms, DType::bf16, DType::e4m3, 256, 128, true),
                            rope_producer(DType::bf16, DType::e5m2, 64, 3, 128)}) {
    const Bytes values = p.run(gpu, {}).at("values");
    const CurrentScalingResult own = quantize_with_current_scaling(p, values),
                               whole = quantize_with_current_scaling(p, values, 0, 10 * own.amax);
    TestTensor larger(gpu, DType::f32, {1});
    larger.fill_value(10 * own.amax);
    RequantizeStorage storage(gpu, p, own.scale);
    Fp8Output out = storage.output(true);
    out.requantize.all_reduce_amax = [&](const Context& context) {
      context.copy({out.requantize.amax(), DType::f32, {1}}, larger);
    };
    p.run(gpu, out);
    Fp8Result expected = whole.result;
    expected.amax = 10 * own.amax;
    expect_same_quantization(storage.result(), expected);
    expect_finalized(storage, whole.scale, 1, 1);
  }
}

}  // namespace
}  // namespace te::testing
