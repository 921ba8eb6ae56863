// GEMMs with cuBLASLt against the CPU reference with the same inputs.
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "kernels/activation/activation.h"
#include "kernels/gemm/gemm.h"
#include "kernels/quantize/quantize.h"
#include "testing/abilities.h"
#include "testing/temporary_folder.h"

namespace te::kernels {
namespace {

using te::testing::count_different;
using te::testing::TestTensor;

struct GemmCase {
  int64_t m, n, k;
  DType a, b, out;
  bool trans_a, trans_b, accumulate, bias;
  bool fast = false;
  ScaleLayout a_layout = ScaleLayout::tensor, b_layout = ScaleLayout::tensor;  ///< FP8
  bool one_scale() const { return a_layout == ScaleLayout::tensor; }
};

/// Operands of a case on one device; the seeds make them equal on all devices.
struct Operands {
  Operands(const Context& context, const GemmCase& c)
      : a(context, c.a, c.trans_a ? Shape{c.k, c.m} : Shape{c.m, c.k}),
        b(context, c.b, c.trans_b ? Shape{c.n, c.k} : Shape{c.k, c.n}),
        out(context, c.out, {c.m, c.n}),
        bias(context, c.out, {c.n}),
        a_scale(context, DType::f32, scale_shape(c.a_layout, c.m, c.k)),
        b_scale(context, DType::f32, scale_shape(c.b_layout, c.n, c.k)),
        args{a, b, out, c.trans_a, c.trans_b, c.accumulate} {
    a.fill_normal(1, is_fp8(c.a) ? 30.0f : 1.0f);
    b.fill_normal(2, is_fp8(c.b) ? 30.0f : 1.0f);
    bias.fill_normal(3, 5.0f);
    if (!c.one_scale()) {
      a_scale.fill_normal(5, 0.005f, 0.03f), b_scale.fill_normal(6, 0.01f, 0.07f);
    } else {
      a_scale.fill_value(0.03f), b_scale.fill_value(0.07f);
    }
    if (c.accumulate) out.fill_normal(4, 10.0f);  // otherwise it keeps its NaN
    if (c.bias) args.bias = bias;
    if (is_fp8(c.a)) {
      args.a = {a, a_scale, c.a_layout};
      args.b = {b, b_scale, c.b_layout};
      args.fast_accumulation = c.fast;
    }
  }
  TestTensor a, b, out, bias, a_scale, b_scale;
  Gemm args;
};

void check(const Context& gpu, const GemmCase& c) {
  SCOPED_TRACE(fmt::format("{}x{}x{} a {}{} b {}{} out {}{}{}{}", c.m, c.n, c.k, dtype_name(c.a),
                           c.trans_a ? "^T" : "", dtype_name(c.b), c.trans_b ? "^T" : "", dtype_name(c.out),
                           c.accumulate ? " +=" : "", c.bias ? " bias" : "", c.fast ? " fast" : ""));
  const Context cpu = Context::cpu();
  Operands expected(cpu, c), actual(gpu, c);
  const std::vector<float> old = expected.out.floats(), bias = expected.bias.floats();
  gemm(cpu, expected.args);
  gemm(gpu, actual.args);
  const std::vector<float> want = expected.out.floats(), got = actual.out.floats();
  // Typical magnitude of a sum of k products of the operands (FP8: values of 30 times the scales), bias and old value.
  // Scales of groups reach 0.05 and 0.11.
  const double scales = c.one_scale() ? 0.03 * 0.07 : 0.05 * 0.11;
  const double unit = (is_fp8(c.a) ? 900.0 * scales : 1.0) * std::sqrt(static_cast<double>(c.k)) +
                      (c.accumulate ? 10.0 : 0.0) + (c.bias ? 5.0 : 0.0);
  // FP32 sums in another order differ by some 1e-7 of the unit. Tensor cores, however, truncate instead of rounding, so
  // their error grows with the number of partial sums, to some 1e-5 of the unit. FP8 on Hopper adds products with 13 to
  // 14 bits below the largest of a group: an error of 2^-13 per group, with fast accumulation 2^-13 per 32 products.
  const double sum_error = is_fp8(c.a) ? (c.fast ? 3e-3 : 1e-3) : c.a != DType::f32 ? 2e-5 : 3e-6;
  // A BF16 result may be rounded to the adjacent value, 2^-7 of the value. cuBLASLt also rounds the sum to BF16 before
  // it adds the old value or the bias, so if these cancel, the error is relative to them. Fast accumulation drops bits
  // of the running sum in every group: half of 2^-13 each, if all errors have the same sign.
  const double groups = c.fast ? static_cast<double>(c.k) / 32.0 : 0.0;
  const double rounding = (c.out != DType::f32 ? 1.0 / 128.0 : 1e-6) + groups * std::exp2(-14.0);
  for (size_t i = 0; i < got.size(); ++i) {
    const double added =
        (c.accumulate ? std::abs(old[i]) : 0.0f) + (c.bias ? std::abs(bias[i % bias.size()]) : 0.0f);
    ASSERT_NEAR(got[i], want[i], sum_error * unit + rounding * (std::abs(want[i]) + added))
        << "element " << i;
  }
}

/// Selections of these tests go to a folder of their own, so every run searches again.
class OwnCacheFolder : public ::testing::Environment {
 public:
  void SetUp() override { ::setenv("XDG_CACHE_HOME", folder_.path().c_str(), 1); }

 private:
  te::testing::TemporaryFolder folder_;
};
const auto* const own_cache_folder = ::testing::AddGlobalTestEnvironment(new OwnCacheFolder);

TEST(GemmGpu, HighPrecisionAgainstReference) {
  TE_REQUIRE_GPU();
  const int64_t sizes[][3] = {{1, 1, 1}, {3, 5, 7}, {33, 130, 66}, {128, 256, 64}, {520, 264, 1024}};
  for (bool autotune : {false, true}) {
    const Context gpu = Context::cuda(0, {.gemm_autotune = autotune ? GemmAutotune::on : GemmAutotune::off});
    for (const auto& [m, n, k] : sizes)
      for (const auto& [in, out] : {std::pair{DType::f32, DType::f32},
                                    {DType::bf16, DType::bf16},
                                    {DType::bf16, DType::f32},
                                    {DType::f16, DType::f16},
                                    {DType::f16, DType::f32}})
        for (int bits = 0; bits < 16; ++bits)
          check(gpu,
                {m, n, k, in, in, out, (bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0, (bits & 8) != 0});
  }
}

TEST(GemmGpu, Fp8AgainstReference) {
  TE_REQUIRE_ABILITY(fp8);
  const Context gpu = Context::cuda(0);
  const int64_t sizes[][3] = {{16, 16, 16}, {144, 272, 48}, {256, 512, 1024}};
  for (const auto& [m, n, k] : sizes)
    for (const auto& [a, b] :
         {std::pair{DType::e4m3, DType::e4m3}, {DType::e5m2, DType::e4m3}, {DType::e4m3, DType::e5m2}})
      for (DType out : {DType::f32, DType::bf16})
        for (int bits = 0; bits < 8; ++bits)
          check(gpu, {m, n, k, a, b, out, false, true, (bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0});
}

TEST(GemmGpu, Fp8WithAScalePerRowAgainstReference) {
  TE_REQUIRE_ABILITY(fp8_scale_groups);
  const Context gpu = Context::cuda(0);
  const int64_t sizes[][3] = {{16, 16, 16}, {144, 272, 48}, {256, 512, 1024}};
  for (const auto& [m, n, k] : sizes)
    for (const auto& [a, b] : {std::pair{DType::e4m3, DType::e4m3}, {DType::e5m2, DType::e4m3}})
      for (DType out : {DType::f32, DType::bf16})
        for (int bits = 0; bits < 8; ++bits)
          check(gpu, {m, n, k, a, b, out, false, true, (bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0,
                      ScaleLayout::rows, ScaleLayout::rows});
}

// Operands as in fprop and dgrad (a weight in blocks), and as in wgrad, which accumulates in FP32.
TEST(GemmGpu, Fp8WithScalesOf128ValuesAgainstReference) {
  TE_REQUIRE_ABILITY(fp8_scale_groups);
  const Context gpu = Context::cuda(0);
  const int64_t sizes[][3] = {{128, 128, 128}, {144, 272, 256}, {256, 512, 1024}, {16, 400, 384}};
  for (const auto& [m, n, k] : sizes) {
    for (const DType gradient : {DType::e4m3, DType::e5m2}) {
      for (const bool bias : {false, true})
        check(gpu, {m, n, k, gradient, DType::e4m3, DType::bf16, false, true, false, bias, false,
                    ScaleLayout::vectors, ScaleLayout::blocks});
      for (const DType out : {DType::f32, DType::bf16})
        for (const bool accumulate : {false, true})
          check(gpu, {m, n, k, gradient, DType::e4m3, out, false, true, accumulate, false, false,
                      ScaleLayout::vectors, ScaleLayout::vectors});
    }
  }
}

// The summed dimension ends within a block of 128.
TEST(GemmGpu, Fp8WithScalesOf128ValuesAndARaggedEdge) {
  TE_REQUIRE_ABILITY(fp8_scale_groups);
  const Context gpu = Context::cuda(0);
  for (const int64_t k : {16, 144, 336})
    check(gpu, {128, 256, k, DType::e4m3, DType::e4m3, DType::bf16, false, true, false, false, false,
                ScaleLayout::vectors, ScaleLayout::blocks});
}

// One to eight rows: the kernel of generation, also if columns and runs do not fill its warps.
TEST(GemmGpu, FewRowsAgainstReference) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  const DeviceCaps& caps = device_caps(gpu);
  const int64_t sizes[][2] = {{16, 16}, {48, 272}, {1008, 2048}, {4096, 1040}};
  for (const auto& [n, k] : sizes) {
    for (const int64_t m : {1, 2, 3, 4, 5, 8}) {
      for (const DType out : {DType::f32, DType::bf16}) {
        for (const bool bias : {false, true}) {
          for (const int64_t columns : {n, n - 3})
            check(gpu, {m, columns, k, DType::bf16, DType::bf16, out, false, true, false, bias});
          for (const ScaleLayout layout : {ScaleLayout::tensor, ScaleLayout::rows, ScaleLayout::vectors})
            if (layout == ScaleLayout::tensor ? caps.fp8 : caps.fp8_scale_groups)
              check(gpu, {m, n, k, DType::e4m3, DType::e4m3, out, false, true, false, bias, false, layout,
                          layout});
          if (!caps.fp8_scale_groups) continue;
          check(gpu, {m, n, k, DType::e4m3, DType::e4m3, out, false, true, false, bias, false,
                      ScaleLayout::vectors, ScaleLayout::blocks});
        }
      }
    }
  }
}

// A row's result does not depend on other rows, and reading b early changes nothing: x is still being written when the
// GEMM starts.
TEST(GemmGpu, FewRowsThatStartEarly) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (const DType type : {DType::bf16, DType::e4m3}) {
    if (is_fp8(type) && !device_caps(gpu).fp8) continue;
    for (const int64_t rows : {1, 2}) {
      const GemmCase c{rows, 4096, 4096, type, type, DType::bf16, false, true, false, false};
      Operands late(gpu, c), early(gpu, c);
      TestTensor wide(gpu, DType::bf16, {rows, 4096}), one(gpu, DType::f32, {1});
      one.fill_value(1.0f);
      for (int i = 0; i < 20; ++i) {
        // The activation writes the GEMM's input, with the same values both times.
        wide.fill_normal(uint64_t{100} + static_cast<uint64_t>(i));
        for (Operands* operands : {&late, &early}) {
          Gemm args = operands->args;
          args.early_b = operands == &early;
          Fp8Output quantized;
          quantized.rowwise = operands->a, quantized.scale = one.get().as<float>();
          if (type == DType::bf16) {
            activation_forward(gpu, {.kind = ActivationKind::gelu, .x = wide, .y = operands->a});
          } else {
            quantize(gpu, {.x = wide, .out = quantized});
          }
          gemm(gpu, args);
        }
        ASSERT_EQ(count_different(early.out.raw(), late.out.raw(), 2), 0) << rows << " rows, iteration " << i;
      }
    }
  }
}

TEST(GemmGpu, RowsOfAMatrixWithScalesOf128Values) {
  TE_REQUIRE_ABILITY(fp8_scale_groups);
  const Context gpu = Context::cuda(0);
  const GemmCase c{256,  128,   512,   DType::e4m3, DType::e4m3,          DType::bf16,        false,
                   true, false, false, false,       ScaleLayout::vectors, ScaleLayout::blocks};
  Operands whole(gpu, c), parts(gpu, c);
  gemm(gpu, whole.args);
  for (const int64_t first : {0, 64, 192}) {
    Gemm part = parts.args;
    const int64_t count = first == 64 ? 128 : 64;
    part.a = parts.args.a.slice_rows(first, count);
    part.out = parts.args.out.slice_rows(first, count);
    gemm(gpu, part);
  }
  const std::vector<float> want = whole.out.floats(), got = parts.out.floats();
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], std::abs(want[i]) / 64.0 + 1.0) << i;
}

// A slice whose dense scales would take 16 MiB of the workspace.
TEST(GemmGpu, ManyRowsOfAMatrixWithScalesOf128Values) {
  TE_REQUIRE_ABILITY(fp8_scale_groups);
  const Context gpu = Context::cuda(0);
  const int64_t rows = 1 << 18, extra = 128, k = 2048, n = 16, groups = k / 128;
  TestTensor a(gpu, DType::e4m3, {rows + extra, k}), b(gpu, DType::e4m3, {n, k}),
      a_scales(gpu, DType::f32, {groups, rows + extra}), b_scales(gpu, DType::f32, {1, groups}),
      out(gpu, DType::f32, {rows, n});
  a.fill_raw(std::vector<uint8_t>(static_cast<size_t>(a.get().numel()), 0x38).data());  // 1.0
  b.fill_value(1.0f), b_scales.fill_value(1.0f), a_scales.fill_normal(1);
  const Matrix whole{a, a_scales, ScaleLayout::vectors};
  gemm(gpu, {.a = whole.slice_rows(extra, rows),
             .b = {b, b_scales, ScaleLayout::blocks},
             .out = out,
             .trans_b = true});
  const std::vector<float> scales = a_scales.floats(), got = out.floats();
  for (int64_t row = 0; row < rows; ++row) {
    double want = 0.0;
    for (int64_t g = 0; g < groups; ++g)
      want += 128.0 * double{scales[static_cast<size_t>(g * (rows + extra) + extra + row)]};
    ASSERT_NEAR(got[static_cast<size_t>(row * n + row % n)], want, 1e-2) << row;
  }
}

TEST(GemmGpu, Fp8OfSmallIntegersIsExact) {
  TE_REQUIRE_ABILITY(fp8);
  // Integers whose products and sums fit into 13 bits are exact in every accumulator, so all bits must agree.
  const Context gpu = Context::cuda(0);
  const Context cpu = Context::cpu();
  const GemmCase c{64, 96, 128, DType::e4m3, DType::e5m2, DType::f32, false, true, false, false};
  Operands expected(cpu, c), actual(gpu, c);
  std::vector<float> a(64 * 128), b(96 * 128);
  for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(static_cast<int>(i * 7 % 11) - 5);
  for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(static_cast<int>(i * 5 % 9) - 4);
  for (Operands* operands : {&expected, &actual}) {
    operands->a.fill(a);
    operands->b.fill(b);
    operands->a_scale.fill_value(0.5f);
    operands->b_scale.fill_value(4.0f);
  }
  gemm(cpu, expected.args);
  gemm(gpu, actual.args);
  EXPECT_EQ(count_different(actual.out.raw(), expected.out.raw(), 4), 0);
}

TEST(GemmGpu, UnalignedViews) {
  TE_REQUIRE_GPU();
  // Rows from 1 on of tensors with an odd row length: pointers are aligned to 2 bytes only.
  const Context gpu = Context::cuda(0);
  const Context cpu = Context::cpu();
  std::vector<std::vector<float>> results;
  for (const Context* context : {&cpu, &gpu}) {
    TestTensor a(*context, DType::bf16, {34, 65}), b(*context, DType::bf16, {18, 65}),
        out(*context, DType::bf16, {35, 17});
    a.fill_normal(1);
    b.fill_normal(2);
    gemm(*context,
         {a.get().slice_rows(1, 33), b.get().slice_rows(1, 17), out.get().slice_rows(1, 33), false, true});
    results.push_back(out.floats());
    for (size_t i = 0; i < 17; ++i) {
      EXPECT_TRUE(std::isnan(results.back()[i])) << "row before the view was written";
      EXPECT_TRUE(std::isnan(results.back()[34 * 17 + i])) << "row after the view was written";
    }
  }
  for (size_t i = 17; i < 34 * 17; ++i)
    ASSERT_NEAR(results[1][i], results[0][i], std::abs(results[0][i]) / 128.0 + 1e-4) << i;
}

TEST(GemmGpu, TuningAnAccumulatingGemmAddsOnce) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0, {.gemm_autotune = GemmAutotune::full});
  const GemmCase c{1024, 768, 2048, DType::bf16, DType::bf16, DType::f32, true, false, true, false};
  Operands first(gpu, c), second(gpu, c);
  gemm(gpu, first.args);   // tunes
  gemm(gpu, second.args);  // finds the plan
  EXPECT_EQ(count_different(first.out.raw(), second.out.raw(), 4), 0);
  check(gpu, c);
}

TEST(GemmGpu, SelectionIsReadFromTheFile) {
  TE_REQUIRE_GPU();
  const Context full = Context::cuda(0, {.gemm_autotune = GemmAutotune::full});
  const Context later = Context::cuda(0, {.gemm_autotune = GemmAutotune::cached});
  const GemmCase c{512, 384, 4096, DType::bf16, DType::bf16, DType::bf16, false, true, false, false};
  Operands tuned(full, c), cached(later, c);
  gemm(full, tuned.args);
  gemm(later, cached.args);
  EXPECT_EQ(count_different(tuned.out.raw(), cached.out.raw(), 2), 0);
}

TEST(GemmGpu, IsDeterministic) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  // Long sums with few tiles, for which the library splits k.
  for (DType out : {DType::bf16, DType::f32}) {
    const GemmCase c{128, 128, 16384, DType::bf16, DType::bf16, out, true, false, false, false};
    Operands one(gpu, c), two(gpu, c);
    gemm(gpu, one.args);
    for (int i = 0; i < 5; ++i) {
      gemm(gpu, two.args);
      EXPECT_EQ(count_different(one.out.raw(), two.out.raw(), dtype_size(out)), 0);
    }
  }
}

}  // namespace
}  // namespace te::kernels
