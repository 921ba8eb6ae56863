// te-train's own kernels for FP8 with scales of 128 values (kernels/gemm/block_scaled.h), each of them forced, against
// the CPU reference and against GEMMs of dequantized operands in double precision.
#include <cmath>
#include <limits>
#include <optional>
#include <span>

#include "core/float_types.h"
#include "kernels/gemm/block_scaled.h"
#include "kernels/quantize/quantize_groups.h"
#include "testing/testing.h"

namespace te::kernels {
namespace {

using te::testing::count_different;
using te::testing::normal_values;
using te::testing::TestTensor;

/// fprop and dgrad (weight), with a bias; wgrad into FP32 and BF16, overwritten or accumulated.
enum class BlockGemm { weight, bias, gradient, added_gradient, bf16_gradient, added_bf16_gradient };
constexpr BlockGemm kBlockGemms[] = {BlockGemm::weight,        BlockGemm::bias,
                                     BlockGemm::gradient,      BlockGemm::added_gradient,
                                     BlockGemm::bf16_gradient, BlockGemm::added_bf16_gradient};

struct BlockCase {
  BlockGemm gemm;
  DType a;
  int64_t m, n, k;
  bool power_of_two = true;

  bool is_weight() const { return gemm == BlockGemm::weight || gemm == BlockGemm::bias; }
  ScaleLayout b_layout() const { return is_weight() ? ScaleLayout::blocks : ScaleLayout::vectors; }
  bool accumulates() const {
    return gemm == BlockGemm::added_gradient || gemm == BlockGemm::added_bf16_gradient;
  }
  DType out() const {
    return gemm == BlockGemm::gradient || gemm == BlockGemm::added_gradient ? DType::f32 : DType::bf16;
  }
  std::string str() const {
    return fmt::format("{} {} {}x{}x{}", static_cast<int>(gemm), dtype_name(a), m, n, k);
  }
};

/// Operands from quantize_groups, as in the blockwise recipe, with magnitudes that differ from group to group.
struct BlockOperands {
  BlockOperands(const Context& context, const BlockCase& c)
      : a(context, c.a, {c.m, c.k}),
        b(context, DType::e4m3, {c.n, c.k}),
        out(context, c.out(), {c.m, c.n}),
        bias(context, DType::bf16, {c.n}),
        a_scales(context, DType::f32, scale_shape(ScaleLayout::vectors, c.m, c.k)),
        b_scales(context, DType::f32, scale_shape(c.b_layout(), c.n, c.k)) {
    args.a = {a, a_scales, ScaleLayout::vectors};
    args.b = {b, b_scales, c.b_layout()};
    args.out = out;
    args.trans_b = true;
    args.accumulate = c.accumulates();
    bias.fill_normal(3, 4.0f);
    if (c.gemm == BlockGemm::bias) args.bias = bias;
    if (args.accumulate) out.fill_normal(4, 10.0f);  // otherwise it keeps its NaN
    b_scales.fill_value(0.0f);                       // blocks are padded to a multiple of four per row
    cast(context, args.a, c, 1);
    cast(context, args.b, c, 2);
  }
  static void cast(const Context& context, const Matrix& to, const BlockCase& c, uint64_t seed) {
    const std::vector<float> some = normal_values(65521, seed);  // a prime, so that no two rows are equal
    std::vector<float> values(static_cast<size_t>(to.rows() * to.cols()));
    for (int64_t i = 0; i < to.rows() * to.cols(); ++i) {
      const int64_t row = i / to.cols(), block = i % to.cols() / kScaleBlock;
      // Some groups are all zero; the magnitudes of the others differ by powers of two and by 3.
      const int64_t size = (row / 5 + block * 3 + static_cast<int64_t>(seed)) % 7;
      values[static_cast<size_t>(i)] = some[static_cast<size_t>(i) % some.size()] *
                                       (size == 6 ? 0.0f : std::exp2(static_cast<float>(size)) / 3.0f);
    }
    TestTensor x(context, DType::f32, {to.rows(), to.cols()});
    x.fill(values);
    quantize_groups(context, {.x = x, .rowwise = to, .power_of_two = c.power_of_two});
  }

  TestTensor a, b, out, bias, a_scales, b_scales;
  Gemm args;
};

/// One context per kernel.
std::vector<Context> contexts() {
  std::vector<Context> all;
  for (int kernel = 1; kernel <= static_cast<int>(kBlockScaledKernels.size()); ++kernel)
    all.push_back(Context::cuda(0, {.block_scaled_gemm = kernel}));
  return all;
}
std::string name_of(const Context& context) {
  const int kernel = context.options().block_scaled_gemm;
  if (kernel < 0) return "selected";
  return kernel == 0 ? "cuBLASLt" : kBlockScaledKernels[static_cast<size_t>(kernel) - 1];
}

/// An element of the result: exact value and error bound.
struct Exact {
  size_t at;
  double value, bound;
};

/// Exact values of every kStep-th element, in double precision.
std::vector<Exact> exact_elements(const BlockCase& c, const BlockOperands& operands) {
  const std::vector<float> a = operands.a.floats(), b = operands.b.floats(), bias = operands.bias.floats(),
                           sa = operands.a_scales.floats(), sb = operands.b_scales.floats(),
                           old = operands.out.floats();
  const int64_t stride = operands.args.b.scales.cols();
  constexpr int64_t kStep = 37;  // no multiple of 2: covers all columns of all threads in some row
  std::vector<Exact> all;
  for (int64_t i = 0; i < c.m * c.n; i += kStep) {
    const int64_t row = i / c.n, column = i % c.n;
    double sum = 0.0, size = 0.0;
    for (int64_t k = 0; k < c.k; ++k) {
      const int64_t block = k / kScaleBlock;
      const double of_b = c.is_weight() ? sb[static_cast<size_t>(column / kScaleBlock * stride + block)]
                                        : sb[static_cast<size_t>(block * c.n + column)];
      const double term = static_cast<double>(a[static_cast<size_t>(row * c.k + k)]) *
                          sa[static_cast<size_t>(block * c.m + row)] *
                          static_cast<double>(b[static_cast<size_t>(column * c.k + k)]) * of_b;
      sum += term, size += std::abs(term);
    }
    const auto at = static_cast<size_t>(i);
    if (c.gemm == BlockGemm::bias) sum += bias[static_cast<size_t>(column)];
    const double product = sum;
    if (c.accumulates()) sum += old[at];
    // Tensor cores accumulate a group's products with 13 bits below the largest: an error of at most 2^-13 of the
    // terms' sizes. FP32 sums add their rounding, and a BF16 result is rounded once, plus once before an accumulation.
    const double rounding = c.out() == DType::bf16 ? 1.0 / 256.0 : 1e-6;
    all.push_back({at, sum, std::exp2(-12.0) * size + rounding * (std::abs(sum) + std::abs(product)) + 1e-6});
  }
  return all;
}

/// Runs all kernels on the same operands.
void check(std::span<const Context> choices, const BlockCase& c) {
  BlockOperands operands(choices.front(), c);
  ASSERT_TRUE(is_block_scaled(operands.args));
  const std::vector<uint8_t> old = operands.out.raw();
  const std::vector<Exact> exact = exact_elements(c, operands);
  for (const Context& context : choices) {
    SCOPED_TRACE(c.str() + ", " + name_of(context));
    operands.out.fill_raw(old.data());
    choices.front().synchronize();
    gemm(context, operands.args);
    context.synchronize();
    const std::vector<float> got = operands.out.floats();
    for (const Exact& e : exact)
      ASSERT_NEAR(got[e.at], e.value, e.bound)
          << "row " << e.at / static_cast<size_t>(c.n) << ", column " << e.at % static_cast<size_t>(c.n);
  }
}

// Full and partial tiles; depths of one step, of a partial step, and of more than the ring's stages; one row of tiles;
// few and many tiles, also more than can be resident.
constexpr int64_t kBlockSizes[][3] = {{128, 128, 128},  {16, 16, 16},     {256, 256, 512},  {144, 272, 256},
                                      {16, 400, 384},   {272, 144, 144},  {640, 576, 1040}, {528, 1008, 272},
                                      {1024, 128, 336}, {128, 1344, 2048}};

TEST(BlockScaledGpu, EveryKernelAgainstExactSums) {
  TE_REQUIRE_GPU();
  const std::vector<Context> all = contexts();
  for (const BlockGemm gemm : kBlockGemms)
    for (const DType a : {DType::e4m3, DType::e5m2})
      for (const auto& [m, n, k] : kBlockSizes) check(all, {gemm, a, m, n, k});
}

TEST(BlockScaledGpu, ScalesInFp32) {
  TE_REQUIRE_GPU();
  const std::vector<Context> all = contexts();
  for (const BlockGemm gemm : kBlockGemms) check(all, {gemm, DType::e4m3, 400, 336, 656, false});
}

// More tiles than SMs, so that blocks process several tiles and reuse buffers.
TEST(BlockScaledGpu, ManyTilesAgainstTheCpu) {
  TE_REQUIRE_GPU();
  const Context cpu = Context::cpu();
  for (const BlockGemm gemm : {BlockGemm::weight, BlockGemm::added_gradient}) {
    const BlockCase c{gemm, DType::e5m2, 2640, 2064, 528};
    BlockOperands expected(cpu, c);
    kernels::gemm(cpu, expected.args);
    const std::vector<float> want = expected.out.floats();
    for (const Context& context : contexts()) {
      SCOPED_TRACE(name_of(context));
      BlockOperands actual(context, c);
      kernels::gemm(context, actual.args);
      const std::vector<float> got = actual.out.floats();
      // Terms have sizes up to about 30 in the largest groups, and there are 528 of them; tensor cores lose 2^-13 of
      // the sums.
      const double unit = 30.0 * std::sqrt(528.0) * 4.0;
      for (size_t i = 0; i < got.size(); ++i)
        ASSERT_NEAR(got[i], want[i], unit * std::exp2(-13.0) * 8 + std::abs(want[i]) / 128.0) << i;
    }
  }
}

// Sums are in the order of k for every tile shape, so kernels and repeated calls agree bitwise.
TEST(BlockScaledGpu, KernelsAgreeBitwiseAndAreDeterministic) {
  TE_REQUIRE_GPU();
  const std::vector<Context> all = contexts();
  for (const BlockGemm gemm : kBlockGemms) {
    const BlockCase c{gemm, DType::e5m2, 1040, 784, 2064};
    std::optional<std::vector<uint8_t>> first;
    BlockOperands operands(all.front(), c);
    const std::vector<uint8_t> old = operands.out.raw();
    for (const Context& context : all) {
      for (int call = 0; call < 3; ++call) {
        operands.out.fill_raw(old.data());
        all.front().synchronize();
        kernels::gemm(context, operands.args);
        context.synchronize();
        const std::vector<uint8_t> bits = operands.out.raw();
        if (!first) first = bits;
        ASSERT_EQ(count_different(bits, *first, dtype_size(c.out())), 0)
            << c.str() << ", " << name_of(context) << ", call " << call;
      }
    }
  }
}

// The scales of a slice of a's rows have a larger stride than the slice has rows.
TEST(BlockScaledGpu, RowsOfALargerMatrix) {
  TE_REQUIRE_GPU();
  const BlockCase c{BlockGemm::weight, DType::e4m3, 512, 384, 640};
  for (const Context& context : contexts()) {
    BlockOperands whole(context, c), parts(context, c);
    kernels::gemm(context, whole.args);
    for (const int64_t first : {0, 48, 352}) {
      const int64_t count = first == 0 ? 48 : first == 48 ? 304 : 160;
      Gemm part = parts.args;
      part.a = parts.args.a.slice_rows(first, count);
      part.out = parts.args.out.slice_rows(first, count);
      kernels::gemm(context, part);
    }
    EXPECT_EQ(count_different(whole.out.raw(), parts.out.raw(), 2), 0) << name_of(context);
  }
}

// An infinite or NaN scale affects exactly the elements that it multiplies.
TEST(BlockScaledGpu, NonFiniteScalesAffectOnlyTheirElements) {
  TE_REQUIRE_GPU();
  constexpr float kInfinity = std::numeric_limits<float>::infinity(),
                  kNan = std::numeric_limits<float>::quiet_NaN();
  for (const Context& context : contexts()) {
    for (const BlockGemm gemm : {BlockGemm::weight, BlockGemm::added_gradient}) {
      const BlockCase c{gemm, DType::e4m3, 272, 400, 400};
      BlockOperands clean(context, c), spoilt(context, c);
      // a: row 19 in k block 1, row 271 in block 3 (the last, partial one); b: the scale of column 300 in block 2.
      std::vector<float> sa = spoilt.a_scales.floats(), sb = spoilt.b_scales.floats();
      sa[static_cast<size_t>(1 * c.m + 19)] = kNan, sa[static_cast<size_t>(3 * c.m + 271)] = kInfinity;
      const int64_t stride = spoilt.args.b.scales.cols();
      sb[static_cast<size_t>(c.is_weight() ? 300 / kScaleBlock * stride + 2 : 2 * c.n + 300)] = kNan;
      spoilt.a_scales.fill(sa), spoilt.b_scales.fill(sb);
      kernels::gemm(context, clean.args);
      kernels::gemm(context, spoilt.args);
      const std::vector<float> want = clean.out.floats(), got = spoilt.out.floats();
      for (int64_t i = 0; i < c.m * c.n; ++i) {
        const int64_t row = i / c.n, column = i % c.n;
        const bool of_b = c.is_weight() ? column / kScaleBlock == 300 / kScaleBlock : column == 300;
        const float value = got[static_cast<size_t>(i)];
        const bool good =
            row == 19 || row == 271 || of_b ? !std::isfinite(value) : value == want[static_cast<size_t>(i)];
        ASSERT_TRUE(good) << c.str() << " " << row << ", " << column << ": " << value;
      }
    }
  }
}

// Rows before and after the result are not written.
TEST(BlockScaledGpu, WritesOnlyItsRows) {
  TE_REQUIRE_GPU();
  for (const Context& context : contexts()) {
    for (const BlockGemm gemm : {BlockGemm::weight, BlockGemm::gradient}) {
      const BlockCase c{gemm, DType::e4m3, 208, 336, 272};
      BlockOperands operands(context, c);
      const TestTensor wide(context, c.out(), {c.m + 2, c.n});
      operands.args.out = wide.get().slice_rows(1, c.m);
      kernels::gemm(context, operands.args);
      const std::vector<float> got = wide.floats();
      for (int64_t i = 0; i < (c.m + 2) * c.n; ++i)
        ASSERT_EQ(std::isnan(got[static_cast<size_t>(i)]), i < c.n || i >= (c.m + 1) * c.n)
            << name_of(context) << " " << i / c.n << ", " << i % c.n;
    }
  }
}

// Unsupported GEMMs run cuBLASLt even if the kernels are requested: a weight into FP32.
TEST(BlockScaledGpu, UnsupportedGemmsRunTheLibrary) {
  TE_REQUIRE_GPU();
  const Context own = Context::cuda(0, {.block_scaled_gemm = 1}),
                library = Context::cuda(0, {.block_scaled_gemm = 0});
  const BlockCase c{BlockGemm::weight, DType::e4m3, 256, 256, 512};
  std::vector<std::vector<uint8_t>> bits;
  for (const Context* context : {&own, &library}) {
    BlockOperands operands(*context, c);
    const TestTensor out(*context, DType::f32, {c.m, c.n});
    operands.args.out = out;
    EXPECT_FALSE(is_block_scaled(operands.args));
    kernels::gemm(*context, operands.args);
    bits.push_back(out.raw());
  }
  EXPECT_EQ(count_different(bits[0], bits[1], 4), 0);
}

// With the search enabled, gemm() selects one kernel and keeps it, and timing an accumulating GEMM adds only once.
TEST(BlockScaledGpu, SelectionIsKept) {
  TE_REQUIRE_GPU();
  for (const GemmAutotune autotune : {GemmAutotune::off, GemmAutotune::on, GemmAutotune::cached}) {
    const Context context = Context::cuda(0, {.gemm_autotune = autotune, .block_scaled_gemm = -1});
    const BlockCase c{BlockGemm::added_gradient, DType::e5m2, 2048, 2304, 1024};
    check({&context, 1}, c);
    BlockOperands first(context, c), second(context, c);
    kernels::gemm(context, first.args);
    kernels::gemm(context, second.args);
    EXPECT_EQ(count_different(first.out.raw(), second.out.raw(), 4), 0);
  }
}

}  // namespace
}  // namespace te::kernels
