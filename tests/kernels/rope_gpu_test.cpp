// CUDA rotary embedding against the CPU reference: the same bits.
#include "kernels/rope/rope.h"
#include "testing/testing.h"

namespace te::testing {
namespace {

using kernels::rope;

struct GpuRopeCase {
  int64_t batch, seq, heads, groups, head_dim;
};

TEST(RopeGpuTest, SameBitsAsCpu) {
  TE_REQUIRE_GPU();
  const Context cpu = Context::cpu(), gpu = Context::cuda(0);
  const GpuRopeCase cases[] = {{1, 1, 1, 1, 2},   {2, 5, 3, 1, 6},    {2, 33, 4, 2, 64},
                               {1, 17, 2, 2, 80}, {1, 70, 8, 8, 128}, {3, 40, 5, 1, 24}};
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const GpuRopeCase& t : cases) {
      const Shape shape{t.batch * t.seq, (t.heads + 2 * t.groups) * t.head_dim};
      const Shape table{t.seq + 2, t.head_dim / 2};
      std::vector<float> cos(table.numel()), sin(table.numel());
      kernels::rope_tables(t.seq + 2, t.head_dim, 10000.0, cos.data(), sin.data());
      for (const bool backward : {false, true}) {
        std::vector<uint8_t> bits[2];
        for (const bool on_gpu : {false, true}) {
          const Context& context = on_gpu ? gpu : cpu;
          TestTensor qkv(context, dtype, shape), c(context, DType::f32, table), s(context, DType::f32, table);
          qkv.fill_normal(1), c.fill(cos), s.fill(sin);
          rope(context, {qkv, c, s, t.seq, t.heads, t.groups, t.head_dim, backward});
          bits[on_gpu ? 1 : 0] = qkv.raw();
        }
        EXPECT_EQ(count_different(bits[1], bits[0], dtype_size(dtype)), 0)
            << dtype_name(dtype) << " seq " << t.seq << " head_dim " << t.head_dim;
      }
    }
  }
}

TEST(RopeGpuTest, PositionsOfTheirOwn) {
  TE_REQUIRE_GPU();
  const Context cpu = Context::cpu(), gpu = Context::cuda(0);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const int64_t dim : {64, 6}) {
      std::vector<float> cos(50 * dim / 2), sin(cos.size());
      kernels::rope_tables(50, dim, 10000.0, cos.data(), sin.data());
      std::vector<uint8_t> bits[2];
      for (const bool on_gpu : {false, true}) {
        const Context& context = on_gpu ? gpu : cpu;
        TestTensor qkv(context, dtype, {5, 4 * dim}), c(context, DType::f32, {50, dim / 2});
        TestTensor s(context, DType::f32, {50, dim / 2}), ids(context, DType::i32, {5});
        qkv.fill_normal(1), c.fill(cos), s.fill(sin), ids.fill_ints({49, 0, 7, 7, 13});
        rope(context, {qkv, c, s, 0, 2, 1, dim, false, ids});
        bits[on_gpu ? 1 : 0] = qkv.raw();
      }
      EXPECT_EQ(count_different(bits[1], bits[0], dtype_size(dtype)), 0) << dtype_name(dtype) << " " << dim;
    }
  }
}

}  // namespace
}  // namespace te::testing
