// CUDA attention against a cache, compared with the CPU reference.
#include "kernels/decode_cases.h"
#include "kernels/rope/rope.h"

namespace te::testing {
namespace {

// FP32: the summation order differs, and __expf has errors of 2 ulp and more for large arguments. BF16: both round
// once, so outputs may differ by one step of 2^-8.
TEST(DecodeGpuTest, MatchesCpu) {
  TE_REQUIRE_GPU();
  const Context cpu = Context::cpu(), gpu = Context::cuda(0);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const DecodeCase& c : decode_cases()) {
      DecodeData expected(cpu, c, dtype), actual(gpu, c, dtype);
      kernels::cache_append(cpu, expected.append());
      kernels::cache_append(gpu, actual.append());
      EXPECT_EQ(count_different(actual.k.raw(), expected.k.raw(), dtype_size(dtype)), 0) << c.dim;
      EXPECT_EQ(count_different(actual.v.raw(), expected.v.raw(), dtype_size(dtype)), 0) << c.dim;
      kernels::attention_decode(cpu, expected.decode());
      kernels::attention_decode(gpu, actual.decode());
      EXPECT_LT(max_relative_error(actual.o.floats(), expected.o.floats(), 0.1),
                dtype == DType::f32 ? 2e-5 : 1e-2)
          << c.heads << " heads, head_dim " << c.dim;
    }
  }
}

// A row's result does not depend on other rows.
TEST(DecodeGpuTest, RowsDoNotDependOnOtherRows) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  const DecodeCase c{3, 100, 8, 2, 64, {2, 0, 1}, {99, 3, 50}};
  DecodeData all(gpu, c, DType::bf16), alone(gpu, c, DType::bf16);
  kernels::attention_decode(gpu, all.decode());
  for (int64_t r = 0; r < 3; ++r) kernels::attention_decode(gpu, alone.decode_row(r));
  EXPECT_EQ(count_different(alone.o.raw(), all.o.raw(), 2), 0);
}

// A step in one launch against the three ops: bitwise equal o and cache, with and without rotation.
TEST(DecodeGpuTest, StepEqualsThreeOpsBitwise) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const int64_t dim : {32, 64, 80, 128, 256}) {
      for (const int64_t window : {0, 9}) {
        for (const bool rotated : {false, true}) {
          const DecodeCase c{3, 400, 4, 2, dim, {2, 0, 1}, {399, 0, 70}, window};
          DecodeData step(gpu, c, dtype), three(gpu, c, dtype);
          TestTensor cos(gpu, DType::f32, {400, dim / 2}), sin(gpu, DType::f32, {400, dim / 2});
          cos.fill_normal(7), sin.fill_normal(8);
          kernels::attention_step(
              gpu, {step.decode(), rotated ? cos.get() : Tensor{}, rotated ? sin.get() : Tensor{}});
          if (rotated)
            kernels::rope(gpu, {.qkv = three.qkv,
                                .cos = cos,
                                .sin = sin,
                                .seq = 400,
                                .num_heads = 4,
                                .num_query_groups = 2,
                                .head_dim = dim,
                                .positions = three.positions});
          kernels::cache_append(gpu, three.append());
          kernels::attention_decode(gpu, three.decode());
          SCOPED_TRACE(fmt::format("{}, head_dim {}, window {}", dtype_name(dtype), dim, window));
          EXPECT_EQ(count_different(step.o.raw(), three.o.raw(), dtype_size(dtype)), 0);
          EXPECT_EQ(count_different(step.k.raw(), three.k.raw(), dtype_size(dtype)), 0);
          EXPECT_EQ(count_different(step.v.raw(), three.v.raw(), dtype_size(dtype)), 0);
        }
      }
    }
  }
}

// Few rows are divided among several blocks per head, many rows are not; results are bitwise equal.
TEST(DecodeGpuTest, ManyRowsEqualSingleRowsBitwise) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (const int64_t dim : {64, 80, 128, 256}) {
    DecodeCase c{2, 700, 8, 2, dim, {}, {}};
    for (int32_t r = 0; r < 90; ++r) c.sequences.push_back(r % 2), c.positions.push_back(699 - 7 * r);
    DecodeData all(gpu, c, DType::bf16), alone(gpu, c, DType::bf16);
    kernels::attention_decode(gpu, all.decode());
    for (int64_t r = 0; r < 90; ++r) kernels::attention_decode(gpu, alone.decode_row(r));
    EXPECT_EQ(count_different(alone.o.raw(), all.o.raw(), 2), 0) << dim;
  }
}

}  // namespace
}  // namespace te::testing
