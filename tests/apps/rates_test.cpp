// Which calls te-bench's profile measures as one problem: calls of equal speed.
#include "bench/rates.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_activation.h"

namespace te::bench {
namespace {

using kernels::ScaleLayout;

/// Memory that tensors may point to; its contents do not matter.
char rates_memory[16];

Tensor rates_tensor(DType dtype, const Shape& shape) {
  return {rates_memory, dtype, shape};
}

kernels::Matrix fp8_matrix(DType dtype, ScaleLayout layout) {
  return {rates_tensor(dtype, {256, 256}), rates_tensor(DType::f32, kernels::scale_shape(layout, 256, 256)),
          layout};
}

/// Checks that all problems have different keys.
template <class Problem>
void expect_different_keys(const std::vector<Problem>& problems) {
  std::set<std::string> keys;
  for (const Problem& problem : problems)
    EXPECT_TRUE(keys.insert(problem_key(problem)).second) << problem_key(problem);
}

TEST(Rates, AttentionWithOtherWindowsIsAnotherProblem) {
  kernels::AttentionForward full;
  full.shape = {.batch = 1, .seq = 512, .num_heads = 4, .num_query_groups = 2, .head_dim = 16};
  full.qkv = rates_tensor(DType::bf16, {512, 128});
  std::vector<kernels::AttentionForward> forward(4, full);
  forward[1].shape.window = 16;
  forward[2].shape.window = 32;
  forward[3].shape.range = {.count = 128, .position = 128, .rows = 256, .first = 0};
  expect_different_keys(forward);
  std::vector<kernels::AttentionBackward> backward;
  for (const kernels::AttentionForward& args : forward) {
    kernels::AttentionBackward& last = backward.emplace_back();
    last.shape = args.shape, last.qkv = args.qkv;
  }
  expect_different_keys(backward);
}

// Layers of one model may have different recipes, formats and GEMMs in BF16 (precision.overrides).
TEST(Rates, GemmsWithOtherOperandsAreOtherProblems) {
  kernels::GemmActivationForward tensorwise;
  tensorwise.a = tensorwise.b = fp8_matrix(DType::e4m3, ScaleLayout::tensor);
  tensorwise.out = rates_tensor(DType::bf16, {256, 256});
  tensorwise.y_fp8.rowwise = rates_tensor(DType::e4m3, {256, 128});
  std::vector<kernels::GemmActivationForward> fused(8, tensorwise);
  fused[1].fast_accumulation = true;
  fused[2].y = rates_tensor(DType::bf16, {256, 128});
  fused[3].a = fp8_matrix(DType::e4m3, ScaleLayout::vectors);
  fused[3].b = fp8_matrix(DType::e4m3, ScaleLayout::blocks);
  fused[4].a = fused[4].b = fp8_matrix(DType::e4m3, ScaleLayout::rows);
  fused[5].b = fp8_matrix(DType::e5m2, ScaleLayout::tensor);
  fused[6].kind = kernels::ActivationKind::geglu;
  fused[7].kind = kernels::ActivationKind::swiglu_clamped;
  expect_different_keys(fused);
  kernels::Gemm plain{.a = tensorwise.a, .b = tensorwise.b, .out = tensorwise.out, .trans_b = true};
  std::vector<kernels::Gemm> gemms(4, plain);
  gemms[1].fast_accumulation = true;
  gemms[2].a = fused[3].a, gemms[2].b = fused[3].b;
  gemms[3].b = fused[5].b;
  expect_different_keys(gemms);
}

}  // namespace
}  // namespace te::bench
