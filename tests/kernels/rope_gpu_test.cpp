// CUDA rotary embedding against the CPU reference, bitwise.
#include "kernels/quantize/quantize.h"
#include "kernels/rope/rope.h"
#include "testing/testing.h"

namespace te::testing {
namespace {

using kernels::rope;

struct GpuRopeCase {
  int64_t batch, seq, heads, groups, head_dim;
};

TEST(RopeGpuTest, MatchesCpuBitwise) {
  TE_REQUIRE_GPU();
  const Context cpu = Context::cpu(), gpu = Context::cuda(0);
  const GpuRopeCase cases[] = {{1, 1, 1, 1, 2},   {2, 5, 3, 1, 6},    {2, 33, 4, 2, 64},
                               {1, 17, 2, 2, 80}, {1, 70, 8, 8, 128}, {3, 40, 5, 1, 24}};
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
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

// Rotation and quantization in one op give the bytes, amax and column sums of the CPU's two passes, also if the fused
// kernel (heads of 128) does not apply.
TEST(RopeGpuTest, QuantizesRotatedValues) {
  TE_REQUIRE_GPU();
  const Context cpu = Context::cpu(), gpu = Context::cuda(0);
  const GpuRopeCase cases[] = {
      {1, 128, 2, 1, 128}, {2, 72, 3, 3, 128}, {1, 33, 2, 1, 128}, {1, 64, 4, 2, 64}};
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const GpuRopeCase& t : cases) {
      const int64_t rows = t.batch * t.seq, columns = (t.heads + 2 * t.groups) * t.head_dim;
      const Shape table{t.seq, t.head_dim / 2};
      std::vector<float> cos(table.numel()), sin(table.numel());
      kernels::rope_tables(t.seq, t.head_dim, 10000.0, cos.data(), sin.data());
      std::vector<uint8_t> rowwise[2], columnwise[2], amax[2];
      std::vector<float> dbias[2];
      for (const bool on_gpu : {false, true}) {
        const Context& context = on_gpu ? gpu : cpu;
        TestTensor qkv(context, dtype, {rows, columns}), c(context, DType::f32, table);
        TestTensor s(context, DType::f32, table), q(context, DType::e5m2, {rows, columns});
        TestTensor qt(context, DType::e5m2, {columns, rows}), scale(context, DType::f32, {4});
        TestTensor largest(context, DType::f32, {1}), bias(context, DType::f32, {columns});
        TestTensor sums(context, DType::f32, {kernels::quantize_scratch_elements(rows, columns)});
        qkv.fill_normal(1), c.fill(cos), s.fill(sin), scale.fill({30.0f, 0, 0, 0});
        largest.fill_value(0), bias.fill_value(0);
        kernels::Rope args{qkv, c, s, t.seq, t.heads, t.groups, t.head_dim, true};
        args.out.rowwise = q, args.out.columnwise = qt;
        args.out.scale = scale.get().as<float>(), args.out.amax = largest.get().as<float>();
        args.dbias = bias, args.scratch = sums;
        rope(context, args);
        rowwise[on_gpu] = q.raw(), columnwise[on_gpu] = qt.raw(), amax[on_gpu] = largest.raw();
        dbias[on_gpu] = bias.floats();
      }
      const std::string what = fmt::format("{} seq {} dim {}", dtype_name(dtype), t.seq, t.head_dim);
      EXPECT_EQ(rowwise[1], rowwise[0]) << what;
      EXPECT_EQ(columnwise[1], columnwise[0]) << what;
      EXPECT_EQ(amax[1], amax[0]) << what;
      for (size_t i = 0; i < dbias[0].size(); ++i) ASSERT_NEAR(dbias[1][i], dbias[0][i], 2e-4) << what;
    }
  }
}

TEST(RopeGpuTest, ExplicitPositions) {
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
