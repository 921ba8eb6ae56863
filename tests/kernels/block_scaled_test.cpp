// Which GEMMs te-train's own kernels for scales of 128 values support; their results are tested on a GPU.
#include "kernels/gemm/block_scaled.h"

#include "testing/testing.h"

namespace te::kernels {
namespace {

using te::testing::TestTensor;

struct Candidate {
  Candidate() {
    args.a = {a, a_scales, ScaleLayout::vectors};
    args.b = {b, vectors, ScaleLayout::vectors};
    args.out = fp32;
    args.trans_b = true;
  }
  Context cpu = Context::cpu();
  TestTensor a{cpu, DType::e5m2, {48, 256}}, b{cpu, DType::e4m3, {32, 256}}, fp32{cpu, DType::f32, {48, 32}},
      bf16{cpu, DType::bf16, {48, 32}}, bias{cpu, DType::bf16, {32}}, a_scales{cpu, DType::f32, {2, 48}},
      vectors{cpu, DType::f32, {2, 32}}, blocks{cpu, DType::f32, {1, 4}}, e5m2{cpu, DType::e5m2, {32, 256}};
  Gemm args;
};

TEST(BlockScaled, SupportsWgrad) {
  Candidate c;
  EXPECT_TRUE(is_block_scaled(c.args));
  c.args.accumulate = true;
  EXPECT_TRUE(is_block_scaled(c.args));
  c.args.out = c.bf16;
  EXPECT_TRUE(is_block_scaled(c.args));
  c.args.bias = c.bias;
  EXPECT_FALSE(is_block_scaled(c.args));
}

TEST(BlockScaled, SupportsWeightsIntoBf16) {
  Candidate c;
  c.args.b = {c.b, c.blocks, ScaleLayout::blocks};
  EXPECT_FALSE(is_block_scaled(c.args));  // FP32 result
  c.args.out = c.bf16;
  EXPECT_TRUE(is_block_scaled(c.args));
  c.args.bias = c.bias;
  EXPECT_TRUE(is_block_scaled(c.args));
  c.args.accumulate = true;
  EXPECT_FALSE(is_block_scaled(c.args));
}

TEST(BlockScaled, RejectsOtherScalesFormatsAndAlignments) {
  Candidate c;
  Gemm other = c.args;
  other.b.values = c.e5m2;
  EXPECT_FALSE(is_block_scaled(other));
  other = c.args;
  other.a.layout = other.b.layout = ScaleLayout::rows;
  EXPECT_FALSE(is_block_scaled(other));
  other = c.args;
  other.a.layout = ScaleLayout::blocks;
  EXPECT_FALSE(is_block_scaled(other));
  other = c.args;
  other.out.data = c.fp32.get().as<float>() + 1;
  EXPECT_FALSE(is_block_scaled(other));
  EXPECT_FALSE(is_block_scaled({c.bf16, c.bf16, c.fp32}));
}

}  // namespace
}  // namespace te::kernels
