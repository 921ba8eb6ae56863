// FP8 GEMMs with an activation on the GPU: against FP32 on the CPU, their quantization against that of the separate
// activation, and coverage of the fused kernel. Quantization in two launches: requantize_gpu_test.cpp.
#include <array>
#include <cmath>
#include <vector>

#include "kernels/fp8_storage.h"
#include "kernels/gemm/gemm_activation_cuda.h"
#include "kernels/gemm_activation_fp8_cases.h"
#include "testing/abilities.h"

namespace te::kernels {
namespace {

using te::testing::count_different;
using te::testing::Fp8ActivationCase;
using te::testing::Fp8ActivationOperands;
using te::testing::TestTensor;

/// Full and partial tiles of 128 x 192, k in full stages of 128 and not; all with more tiles than an H200 has SMs.
std::vector<Fp8ActivationCase> fused_fp8_cases() {
  std::vector<Fp8ActivationCase> all;
  using Size = std::array<int64_t, 3>;
  for (const auto& [m, ffn, k] : {Size{4096, 3072, 768},
                                  {2304, 1376, 512},
                                  {2176, 1536, 1024},
                                  {2000, 1552, 144},
                                  {8704, 256, 128},
                                  {3472, 784, 80},
                                  {17008, 16, 16}}) {
    for (const bool bias : {false, true}) all.push_back({ActivationKind::gelu, m, ffn, k, bias});
    all.push_back({ActivationKind::swiglu, m, ffn, k, false});
  }
  return all;
}

/// Few tiles, a bias before SwiGLU, another format.
std::vector<Fp8ActivationCase> other_fp8_cases() {
  return {{ActivationKind::gelu, 256, 384, 512, true},
          {ActivationKind::swiglu, 256, 384, 512, false},
          {ActivationKind::swiglu, 4096, 768, 128, true},
          {ActivationKind::gelu, 4096, 768, 128, false, DType::e5m2}};
}

#ifdef TE_WITH_SM90A
TEST(GemmActivationFp8Gpu, FusedKernelSupportsItsProblems) {
  TE_REQUIRE_ABILITY(hopper_kernels);
  const Context gpu = Context::cuda(0);
  const auto takes = [&](const GemmActivationForward& args) {
    return cuda::gemm_activation_forward(gpu, args);
  };
  for (const Fp8ActivationCase& c : fused_fp8_cases()) {
    SCOPED_TRACE(c.name());
    const Fp8ActivationOperands operands(gpu, c);
    const Fp8Storage storage(gpu, DType::e4m3, c.m, c.ffn, 1.0f);
    EXPECT_TRUE(takes(operands.stored()));
    EXPECT_TRUE(takes(operands.quantized(storage.output())));
    GemmActivationForward slow = operands.stored();  // promoted sums
    slow.fast_accumulation = false;
    EXPECT_FALSE(takes(slow));
    GemmActivationForward rows = operands.stored();
    rows.b.layout = ScaleLayout::rows;
    EXPECT_FALSE(takes(rows));
    const Fp8Storage gradient(gpu, DType::e5m2, c.m, c.ffn, 1.0f);
    EXPECT_FALSE(takes(operands.quantized(gradient.output())));
  }
  for (const Fp8ActivationCase& c : other_fp8_cases()) {
    SCOPED_TRACE(c.name());
    EXPECT_FALSE(takes(Fp8ActivationOperands(gpu, c).stored()));
  }
  // Sizes that FP8 GEMMs do not support are left to gemm, whose error names them.
  EXPECT_FALSE(takes(Fp8ActivationOperands(gpu, {ActivationKind::gelu, 4088, 768, 128, true}).stored()));
}
#endif

// Sums have magnitude 1.5. They keep 13 to 14 bits below the largest product, and after every 32 products drop bits
// below 2^-14 of the running sum, which may be three times as large as usual and cancel (gemm_gpu_test.cpp); `out` is
// rounded once.
TEST(GemmActivationFp8Gpu, AgreesWithFp32OnTheCpu) {
  TE_REQUIRE_ABILITY(fp8);
  const Context gpu = Context::cuda(0), cpu = Context::cpu();
  std::vector<Fp8ActivationCase> all = fused_fp8_cases();
  for (const Fp8ActivationCase& c : other_fp8_cases()) all.push_back(c);
  for (const Fp8ActivationCase& c : all) {
    SCOPED_TRACE(c.name());
    const Fp8ActivationOperands operands(gpu, c);
    gemm_activation_forward(gpu, operands.stored());
    TestTensor a(cpu, DType::f32, {c.m, c.k}), b(cpu, DType::f32, {c.n(), c.k}),
        bias(cpu, DType::f32, {c.n()}), out(cpu, DType::f32, {c.m, c.n()}), y(cpu, DType::f32, {c.m, c.ffn});
    a.fill(operands.a.dequantized());
    b.fill(operands.b.dequantized());
    bias.fill(operands.bias.floats());
    gemm_activation_forward(cpu, {.kind = c.kind,
                                  .a = a.get(),
                                  .b = b.get(),
                                  .bias = c.bias ? bias.get() : Tensor{},
                                  .out = out,
                                  .y = y});
    const double groups = static_cast<double>(c.k) / 32.0, rounding = 1.0 / 128.0 + groups * std::exp2(-14.0);
    const double absolute = 1.5 * (3e-3 + 3 * groups * std::exp2(-14.0)) + (c.bias ? 8.0 / 512.0 : 0.0);
    const std::vector<float> got = operands.out.floats(), want = out.floats();
    for (size_t i = 0; i < got.size(); ++i) {
      const double bound = rounding * std::abs(want[i]) + absolute;
      if (std::abs(got[i] - want[i]) <= bound) continue;
      FAIL() << "out, element " << i << ": " << got[i] << ", expected " << want[i] << " +- " << bound;
    }
    EXPECT_LT(te::testing::relative_error(got, want), 4e-3);
    // y is computed from `out` as stored.
    TestTensor expected(gpu, DType::bf16, {c.m, c.ffn});
    activation_forward(gpu, {.kind = c.kind, .x = operands.out, .y = expected});
    EXPECT_EQ(count_different(operands.y.raw(), expected.raw(), 2), 0);
  }
}

/// All combinations of layouts and counters that may be requested from `storage`.
std::vector<Fp8Output> outputs_of(const Fp8Storage& storage) {
  std::vector<Fp8Output> all;
  for (const bool counts : {false, true})
    for (const bool rowwise : {false, true})
      for (const bool columnwise : {false, true}) {
        Fp8Output out = storage.output();
        if (!rowwise) out.rowwise = {};
        if (!columnwise) out.columnwise = {};
        if (!counts) out.counters = nullptr;
        if (out.wants_data()) all.push_back(out);
      }
  return all;
}

// All layouts bitwise, with some values beyond the scale; `out` and outputs that are not requested keep their values.
TEST(GemmActivationFp8Gpu, QuantizesLikeTheSeparateActivation) {
  TE_REQUIRE_ABILITY(fp8);
  const Context gpu = Context::cuda(0);
  for (const Fp8ActivationCase& c : fused_fp8_cases()) {
    SCOPED_TRACE(c.name());
    const Fp8ActivationOperands operands(gpu, c);
    gemm_activation_forward(gpu, operands.stored());
    const std::vector<uint8_t> out = operands.out.raw();
    for (size_t index = 0; index < 6; ++index) {
      const Fp8Storage fused(gpu, DType::e4m3, c.m, c.ffn, 200.0f),
          alone(gpu, DType::e4m3, c.m, c.ffn, 200.0f);
      gemm_activation_forward(gpu, operands.quantized(outputs_of(fused)[index]));
      EXPECT_EQ(count_different(operands.out.raw(), out, 2), 0);
      activation_forward(gpu, {.kind = c.kind, .x = operands.out, .y_fp8 = outputs_of(alone)[index]});
      expect_same(fused.read(), alone.read());
      const bool counts = index >= 3;
      EXPECT_EQ(fused.read().counters.saturated > 0, counts);
    }
  }
}

TEST(GemmActivationFp8Gpu, IsDeterministic) {
  TE_REQUIRE_ABILITY(fp8);
  const Context gpu = Context::cuda(0);
  for (const Fp8ActivationCase& c : fused_fp8_cases()) {
    SCOPED_TRACE(c.name());
    const Fp8ActivationOperands operands(gpu, c);
    std::vector<uint8_t> first;
    for (int i = 0; i < 3; ++i) {
      const Fp8Storage storage(gpu, DType::e4m3, c.m, c.ffn, 20.0f);
      gemm_activation_forward(gpu, operands.quantized(storage.output()));
      const Fp8Result result = storage.read();
      if (i == 0) first = result.columnwise;
      EXPECT_EQ(count_different(result.columnwise, first, 1), 0);
      EXPECT_EQ(count_different(transposed(result.rowwise, c.m, c.ffn), first, 1), 0);
    }
  }
}

}  // namespace
}  // namespace te::kernels
