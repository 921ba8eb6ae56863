// GEMMs with an activation on the GPU: against FP32 on the CPU, against two separate steps on the GPU, and coverage of
// the fused kernel.
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/elementwise/elementwise.h"
#include "kernels/gemm/gemm_activation_cuda.h"
#include "kernels/gemm_activation_cases.h"
#include "testing/abilities.h"

namespace te::kernels {
namespace {

using te::testing::count_different;
using te::testing::GemmActivationCase;
using te::testing::GemmActivationOperands;
using te::testing::TestTensor;

constexpr ActivationKind kKinds[] = {ActivationKind::gelu, ActivationKind::swiglu};
using Size = std::array<int64_t, 3>;  ///< m, ffn, k

/// Full and partial tiles of 128 x 192, k in full steps of 64 and not; all with more tiles than an H200 has SMs.
std::vector<GemmActivationCase> fused_cases() {
  std::vector<GemmActivationCase> all;
  for (const ActivationKind kind : kKinds) {
    for (const bool bias : {false, true})
      for (const auto& [m, ffn, k] : {Size{4096, 3072, 768},
                                      {2304, 1376, 512},
                                      {2176, 1536, 1024},
                                      {2000, 1544, 136},
                                      {8704, 256, 64},
                                      {3457, 776, 72},
                                      {17000, 8, 8}})
        all.push_back({kind, DType::bf16, m, ffn, k, bias});
    all.push_back({kind, DType::bf16, 2304, 1376, 512, true, DType::bf16});
  }
  return all;
}

/// Rows that do not consist of full vectors, few tiles, FP32, a clamp: two steps.
std::vector<GemmActivationCase> other_cases() {
  std::vector<GemmActivationCase> all;
  for (const ActivationKind kind : kKinds) {
    for (const bool bias : {false, true}) {
      for (const auto& [m, ffn, k] :
           {Size{1, 1, 1}, {33, 130, 66}, {4096, 770, 128}, {4096, 768, 130}, {256, 384, 512}})
        all.push_back({kind, DType::bf16, m, ffn, k, bias});
      all.push_back({kind, DType::f32, 4096, 768, 128, bias});
    }
  }
  all.push_back({ActivationKind::swiglu_clamped, DType::bf16, 4096, 768, 128, false});
  all.push_back({ActivationKind::geglu, DType::bf16, 4096, 768, 128, false});
  return all;
}

/// Sizes of generation: the forward pass has a kernel of its own for all kinds.
std::vector<GemmActivationCase> few_rows_cases() {
  std::vector<GemmActivationCase> all;
  for (const ActivationKind kind :
       {ActivationKind::gelu, ActivationKind::swiglu, ActivationKind::swiglu_clamped, ActivationKind::geglu})
    for (const bool bias : {false, true})
      for (const auto& [m, ffn, k] : {Size{1, 208, 64}, {2, 200, 520}, {3, 1376, 2048}, {8, 104, 1544}})
        all.push_back({kind, DType::bf16, m, ffn, k, bias});
  return all;
}

std::vector<GemmActivationCase> all_cases() {
  std::vector<GemmActivationCase> all = fused_cases();
  for (const GemmActivationCase& c : other_cases()) all.push_back(c);
  for (const GemmActivationCase& c : few_rows_cases()) all.push_back(c);
  return all;
}

/// |actual - expected| <= relative |expected| + absolute; false for NaN.
void expect_close(const char* what, const std::vector<float>& actual, const std::vector<float>& expected,
                  double relative, double absolute) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    const double bound = relative * std::abs(expected[i]) + absolute;
    if (std::abs(actual[i] - expected[i]) <= bound) continue;  // ASSERT_NEAR is slow for millions
    FAIL() << what << ", element " << i << ": " << actual[i] << ", expected " << expected[i] << " +- "
           << bound;
  }
}

#ifdef TE_WITH_SM90A
// Problems that the kernel does not support run as two steps. Speed in training depends on its support of this list.
TEST(GemmActivationGpu, FusedKernelSupportsItsProblems) {
  TE_REQUIRE_ABILITY(hopper_kernels);
  const Context gpu = Context::cuda(0);
  for (const GemmActivationCase& c : fused_cases()) {
    SCOPED_TRACE(c.name());
    const GemmActivationOperands operands(gpu, c);
    // No model has a bias before SwiGLU.
    const bool is_fused = !c.bias || c.kind == ActivationKind::gelu;
    EXPECT_EQ(cuda::gemm_activation_forward(gpu, operands.forward()), is_fused);
    EXPECT_EQ(cuda::gemm_activation_backward(gpu, operands.backward()), is_fused);
    const GemmKernels expected = is_fused ? GemmKernels::hopper : GemmKernels::cublaslt;
    EXPECT_EQ(gemm_kernels(gpu, operands.forward()), expected);
    EXPECT_EQ(gemm_kernels(gpu, operands.backward()), expected);
  }
  for (const GemmActivationCase& c : other_cases()) {
    SCOPED_TRACE(c.name());
    const GemmActivationOperands operands(gpu, c);
    EXPECT_FALSE(cuda::gemm_activation_forward(gpu, operands.forward()));
    EXPECT_FALSE(cuda::gemm_activation_backward(gpu, operands.backward()));
    EXPECT_FALSE(cuda::gemm_activation_few_rows(gpu, operands.forward()));
    EXPECT_NE(gemm_kernels(gpu, operands.forward()), GemmKernels::hopper);
    if (c.dtype == DType::f32) {
      EXPECT_EQ(gemm_kernels(gpu, operands.forward()), GemmKernels::cublaslt_fp32);
    } else if (c.k % 8 != 0) {
      EXPECT_EQ(gemm_kernels(gpu, operands.forward()), GemmKernels::cublaslt_unaligned);
    }
  }
  for (const GemmActivationCase& c : few_rows_cases()) {
    SCOPED_TRACE(c.name());
    const GemmActivationOperands operands(gpu, c);
    EXPECT_TRUE(cuda::gemm_activation_few_rows(gpu, operands.forward()));
    EXPECT_EQ(gemm_kernels(gpu, operands.forward()), GemmKernels::few_rows);
  }
}

// TMA needs addresses that are multiples of 16 bytes; pairs of bias values need multiples of 4.
TEST(GemmActivationGpu, UnalignedTensorsUseTwoSteps) {
  TE_REQUIRE_ABILITY(hopper_kernels);
  const Context gpu = Context::cuda(0);
  const GemmActivationCase c{ActivationKind::gelu, DType::bf16, 4096, 768, 136, true};
  const GemmActivationOperands operands(gpu, c);
  const TestTensor wide(gpu, DType::bf16, {c.m * c.n() + 8});
  const auto moved = [&](const Tensor& like) {
    return Tensor{wide.get().as<char>() + 2, like.dtype, like.shape};
  };
  GemmActivationForward forward = operands.forward();
  for (Tensor* tensor : {&forward.a.values, &forward.b.values, &forward.bias, &forward.out, &forward.y}) {
    const Tensor aligned = *tensor;
    *tensor = moved(aligned);
    EXPECT_FALSE(cuda::gemm_activation_forward(gpu, forward));
    *tensor = aligned;
  }
  for (Tensor GemmActivationBackward::*tensor : {&GemmActivationBackward::a, &GemmActivationBackward::b,
                                                 &GemmActivationBackward::x, &GemmActivationBackward::dx}) {
    GemmActivationBackward args = operands.backward();
    args.*tensor = moved(args.*tensor);
    EXPECT_FALSE(cuda::gemm_activation_backward(gpu, args));
  }
}
#endif

// All sums are FP32 and of magnitude 1; tensor cores drop some 2e-5 of that. A result is then rounded once (`ulp`
// allows the adjacent value). In two steps cuBLASLt may round the GEMM's result before it adds the bias (2^-9 of a sum
// below 8), and d_y is rounded. Factors in SwiGLU's gradients are below 10.
TEST(GemmActivationGpu, AgreesWithFp32OnTheCpu) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0), cpu = Context::cpu();
  for (const GemmActivationCase& c : all_cases()) {
    SCOPED_TRACE(c.name());
    const double ulp = c.dtype == DType::bf16 ? 1.0 / 128.0 : 2e-5;
    const double absolute = c.dtype == DType::bf16 ? 1e-3 : 1e-4;
    GemmActivationCase exact = c;
    exact.dtype = exact.main_grad = DType::f32;
    GemmActivationOperands want(cpu, exact), got(gpu, c);
    for (const auto& [to, from] : {std::pair{&want.a, &got.a},
                                   {&want.b, &got.b},
                                   {&want.bias, &got.bias},
                                   {&want.dy, &got.dy},
                                   {&want.w, &got.w},
                                   {&want.dbias, &got.dbias}})
      to->fill(from->floats());
    gemm_activation_forward(cpu, want.forward());
    gemm_activation_forward(gpu, got.forward());
    const double bias_rounding = c.bias && c.dtype == DType::bf16 ? 8.0 / 512.0 : 0.0;
    expect_close("out", got.out.floats(), want.out.floats(), ulp, absolute + bias_rounding);
    // The remaining results start from `out` as the GPU stored it.
    want.out.fill(got.out.floats());
    activation_forward(cpu, {.kind = c.kind, .x = want.out, .y = want.y, .clamp = c.clamp()});
    expect_close("y", got.y.floats(), want.y.floats(), ulp, 0.1 * absolute);
    gemm_activation_backward(cpu, want.backward());
    gemm_activation_backward(gpu, got.backward());
    const std::vector<float> dx = got.dx.floats();
    expect_close("dx", dx, want.dx.floats(), ulp, absolute);
    EXPECT_LT(te::testing::relative_error(dx, want.dx.floats()), 0.5 * ulp);
    if (!c.bias) continue;
    // Column sums of dx as stored.
    const GemmActivationOperands old(cpu, c);
    want.dx.fill(dx);
    want.dbias.fill(old.dbias.floats());
    bias_gradient(cpu, want.dx, want.dbias, want.scratch);
    expect_close("dbias", got.dbias.floats(), want.dbias.floats(),
                 c.main_grad == DType::bf16 ? 1.0 / 128.0 : 1e-5, 2e-3);
  }
}

// y is bitwise equal, as selective recomputation requires; other results agree within rounding.
TEST(GemmActivationGpu, MatchesSeparateGemmAndActivation) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (const GemmActivationCase& c : all_cases()) {
    SCOPED_TRACE(c.name());
    const double ulp = c.dtype == DType::bf16 ? 1.0 / 128.0 : 2e-5;
    const double absolute = c.dtype == DType::bf16 ? 1e-3 : 1e-4;
    const double bias_rounding = c.bias && c.dtype == DType::bf16 ? 8.0 / 512.0 : 0.0;
    GemmActivationOperands one(gpu, c), two(gpu, c);
    gemm_activation_forward(gpu, one.forward());
    two.forward_in_two_steps(gpu);
    expect_close("out", one.out.floats(), two.out.floats(), ulp, absolute + bias_rounding);
    two.out.fill_raw(one.out.raw().data());
    activation_forward(gpu, {.kind = c.kind, .x = two.out, .y = two.y, .clamp = c.clamp()});
    EXPECT_EQ(count_different(one.y.raw(), two.y.raw(), dtype_size(c.dtype)), 0);
    gemm_activation_backward(gpu, one.backward());
    two.backward_in_two_steps(gpu);
    expect_close("dx", one.dx.floats(), two.dx.floats(), 1.5 * ulp, absolute);
    EXPECT_LT(te::testing::relative_error(one.dx.floats(), two.dx.floats()), 0.6 * ulp);
    // Also with a recomputed activation: the same gradient, and y bitwise equal to the forward pass.
    const std::vector<uint8_t> dx = one.dx.raw();
    gemm_activation_backward(gpu, one.backward_and_y());
    EXPECT_EQ(count_different(one.recomputed_y.raw(), one.y.raw(), dtype_size(c.dtype)), 0);
    EXPECT_EQ(count_different(one.dx.raw(), dx, dtype_size(c.dtype)), 0);
  }
}

TEST(GemmActivationGpu, IsDeterministic) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (const GemmActivationCase& c : fused_cases()) {
    SCOPED_TRACE(c.name());
    std::vector<std::vector<uint8_t>> first;
    for (int i = 0; i < 3; ++i) {
      const GemmActivationOperands operands(gpu, c);
      gemm_activation_forward(gpu, operands.forward());
      gemm_activation_backward(gpu, operands.backward());
      const std::vector<std::vector<uint8_t>> bits = {operands.out.raw(), operands.y.raw(), operands.dx.raw(),
                                                      operands.dbias.raw()};
      if (i == 0) first = bits;
      EXPECT_EQ(bits, first);
    }
  }
}

// Rows of larger tensors, as in a tensor-parallel layer: rows before and after are not written, and values equal those
// of separate tensors.
TEST(GemmActivationGpu, RowsOfLargerTensors) {
  TE_REQUIRE_ABILITY(hopper_kernels);
  const Context gpu = Context::cuda(0);
  constexpr int64_t kBefore = 3, kRows = 2113, kAfter = 125;
  for (const ActivationKind kind : kKinds) {
    for (const bool bias : {false, true}) {
      if (bias && kind == ActivationKind::swiglu)
        continue;  // two steps, whose algorithm may depend on addresses
      const GemmActivationCase c{kind, DType::bf16, kBefore + kRows + kAfter, 1544, 200, bias};
      GemmActivationCase part = c;
      part.m = kRows;
      SCOPED_TRACE(c.name());
      const GemmActivationOperands whole(gpu, c);
      GemmActivationOperands alone(gpu, part);
      const auto rows = [](const Tensor& tensor) { return tensor.slice_rows(kBefore, kRows); };
      gpu.copy(alone.a, rows(whole.a));
      gpu.copy(alone.dy, rows(whole.dy));
      GemmActivationForward forward = whole.forward();
      forward.a = forward.a.slice_rows(kBefore, kRows), forward.out = rows(forward.out),
      forward.y = rows(forward.y);
      gemm_activation_forward(gpu, forward);
      gemm_activation_forward(gpu, alone.forward());
      GemmActivationBackward backward = whole.backward();
      backward.a = rows(backward.a), backward.x = rows(backward.x);
      backward.dx = rows(backward.dx), backward.d_y = rows(backward.d_y);
      gemm_activation_backward(gpu, backward);
      gemm_activation_backward(gpu, alone.backward());
      for (const auto& [sliced, own] :
           {std::pair{&whole.out, &alone.out}, {&whole.y, &alone.y}, {&whole.dx, &alone.dx}}) {
        const std::vector<uint8_t> all = sliced->raw(), middle = own->raw();
        const size_t row = middle.size() / kRows, first = kBefore * row, last = first + middle.size();
        EXPECT_EQ(std::memcmp(all.data() + first, middle.data(), middle.size()), 0);
        for (size_t i = 0; i < all.size(); ++i) {
          const bool inside = i >= first && i < last;
          ASSERT_TRUE(inside || all[i] == 0xff) << "byte " << i << " outside of the rows";
        }
      }
      EXPECT_EQ(whole.dbias.floats(), alone.dbias.floats());
    }
  }
}

}  // namespace
}  // namespace te::kernels
