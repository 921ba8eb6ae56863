// Megakernels against the same ops launched one by one, and against megakernels with one GEMM each.
#include "kernels/gemm/decode_megakernel.h"

#include <algorithm>

#include "core/float_types.h"
#include "kernels/activation/activation.h"
#include "kernels/gemm/gemm.h"
#include "kernels/quantize/quantize.h"
#include "testing/abilities.h"

namespace te::kernels {
namespace {

using testing::TestTensor;

struct MegakernelCase {
  int64_t rows, hidden, ffn;
  bool fp8;
  ActivationKind activation;
  NormKind norm;
  bool bias;

  int64_t fc1() const { return is_gated(activation) ? 2 * ffn : ffn; }
};

std::string text(const MegakernelCase& c) {
  return fmt::format("{} rows, {} and {} wide, {}, activation {}, norm {}{}", c.rows, c.hidden, c.ffn,
                     c.fp8 ? "FP8" : "BF16", static_cast<int>(c.activation), static_cast<int>(c.norm),
                     c.bias ? ", biases" : "");
}

/// Fills the tensor quickly with repeated normal values, shifted from row to row.
void fill_quickly(TestTensor& tensor, uint64_t seed, float size) {
  const std::vector<float> some = testing::normal_values(65521, seed, size);  // a prime
  std::vector<float> values(static_cast<size_t>(tensor.get().numel()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = some[i % some.size()];
  tensor.fill(values);
}

/// A weight with a bias.
struct Weight {
  Weight(const Context& gpu, const MegakernelCase& c, int64_t n, int64_t k, uint64_t seed)
      : values(gpu, c.fp8 ? DType::e4m3 : DType::bf16, {n, k}),
        scale_inv(gpu, DType::f32, {1}),
        bias(gpu, DType::bf16, {n}) {
    // Scaled so that sums have the magnitude of their terms.
    const float size = 1.0f / std::sqrt(static_cast<float>(k));
    fill_quickly(values, seed, c.fp8 ? 16.0f : size);
    scale_inv.fill_value(size / 16.0f);
    bias.fill_normal(seed + 1, 0.5f);
  }
  TestTensor values, scale_inv, bias;
};

/// proj, norm and fc1, fc2, norm and qkv.
struct Layer {
  Layer(const Context& context, const MegakernelCase& which)
      : gpu(context),
        c(which),
        x(gpu, DType::bf16, {c.rows, c.hidden}),
        residual(gpu, DType::bf16, {c.rows, c.hidden}),
        middle(gpu, DType::bf16, {c.rows, c.hidden}),
        end(gpu, DType::bf16, {c.rows, c.hidden}),
        attention(gpu, DType::bf16, {c.rows, c.hidden}),
        mlp(gpu, DType::bf16, {c.rows, c.hidden}),
        activated(gpu, DType::bf16, {c.rows, c.ffn}),
        qkv(gpu, DType::bf16, {c.rows, 3 * c.hidden}),
        gamma(gpu, DType::bf16, {c.hidden}),
        beta(gpu, DType::bf16, {c.hidden}),
        barrier(gpu, DType::i32, {1}),
        proj_w(gpu, c, c.hidden, c.hidden, 1),
        fc1_w(gpu, c, c.fc1(), c.hidden, 3),
        fc2_w(gpu, c, c.hidden, c.ffn, 5),
        qkv_w(gpu, c, 3 * c.hidden, c.hidden, 7) {
    gamma.fill_normal(11, 0.3f, 1.0f);
    beta.fill_normal(12, 0.3f);
    barrier.fill_ints({0});
    const auto desc = [&](const TestTensor& in, const Weight& w, const TestTensor& out) {
      MegakernelGemm gemm{.x = in, .out = out};
      gemm.weight =
          c.fp8 ? Matrix(w.values.get(), w.scale_inv.get(), ScaleLayout::tensor) : Matrix(w.values.get());
      if (c.bias) gemm.bias = w.bias;
      return gemm;
    };
    const auto normed = [&](MegakernelGemm gemm, const TestTensor& delta, const TestTensor& sum) {
      gemm.norm = {.kind = c.norm, .eps = 1e-5f, .delta = delta, .sum = sum, .gamma = gamma};
      if (c.norm == NormKind::layer) gemm.norm.beta = beta;
      return gemm;
    };
    MegakernelGemm fc1 = normed(desc(residual, fc1_w, activated), attention, middle);
    fc1.activated = true;
    fc1.kind = c.activation;
    fc1.clamp = 1.5f;
    gemms = {desc(x, proj_w, attention), fc1, desc(activated, fc2_w, mlp),
             normed(desc(middle, qkv_w, qkv), mlp, end)};
  }

  void fill(uint64_t seed) {
    x.fill_normal(seed);
    residual.fill_normal(seed + 1);
  }
  void run_as_megakernel() { decode_megakernel(gpu, {gemms, barrier}); }
  void run_separately() {
    for (const MegakernelGemm& gemm : gemms) decode_megakernel(gpu, {{gemm}, barrier});
  }
  /// Runs the ops that decode_megakernel.h lists.
  void run_ops() {
    for (const MegakernelGemm& gemm : gemms) run_op(gemm);
  }
  void run_op(const MegakernelGemm& g) {
    const int64_t k = g.x.cols();
    const TestTensor y(gpu, DType::bf16, {c.rows, k}), mean(gpu, DType::f32, {c.rows}),
        rstd(gpu, DType::f32, {c.rows}), quantized(gpu, DType::e4m3, {c.rows, k}),
        numbers(gpu, DType::f32, {12});
    Tensor input = g.x;
    if (g.norm.gamma) {
      NormForward norm{.kind = g.norm.kind,
                       .eps = g.norm.eps,
                       .x = g.x,
                       .delta = g.norm.delta,
                       .sum = g.norm.sum,
                       .gamma = g.norm.gamma,
                       .beta = g.norm.beta,
                       .rstd = rstd,
                       .y = y};
      if (c.norm == NormKind::layer) norm.mean = mean;
      norm_forward(gpu, norm);
      input = y;
    }
    Matrix a(input);
    if (c.fp8) {
      float* const amax = numbers.get().as<float>();
      ASSERT_TRUE(quantize_current_scaling(
          gpu, {.x = input, .out = quantized, .amax = amax, .scale = amax + 4, .scale_inv = amax + 8}));
      a = Matrix(quantized.get(), {amax + 8, DType::f32, {1}}, ScaleLayout::tensor);
    }
    const TestTensor sums(gpu, DType::bf16, {c.rows, g.weight.rows()});
    gemm(gpu,
         {.a = a, .b = g.weight, .out = g.activated ? sums.get() : g.out, .trans_b = true, .bias = g.bias});
    if (g.activated) activation_forward(gpu, {.kind = g.kind, .x = sums, .y = g.out, .clamp = g.clamp});
    gpu.synchronize();
  }
  std::vector<const TestTensor*> results() const {
    return {&attention, &middle, &activated, &mlp, &end, &qkv};
  }

  const Context& gpu;
  MegakernelCase c;
  TestTensor x, residual, middle, end, attention, mlp, activated, qkv, gamma, beta, barrier;
  Weight proj_w, fc1_w, fc2_w, qkv_w;
  std::vector<MegakernelGemm> gemms;
};

std::vector<MegakernelCase> megakernel_cases() {
  using A = ActivationKind;
  std::vector<MegakernelCase> all;
  for (const bool fp8 : {false, true}) {
    for (const int64_t rows : {1, 2, 5, 8}) {
      all.push_back({rows, 128, 384, fp8, A::swiglu, NormKind::rms, false});
      if (rows != 5) all.push_back({rows, 2048, 5632, fp8, A::swiglu, NormKind::rms, false});
      all.push_back({rows, 768, 3072, fp8, A::gelu, NormKind::layer, true});
    }
    all.push_back({1, 4096, 11008, fp8, A::swiglu, NormKind::rms, false});
    all.push_back({1, 5120, 1280, fp8, A::swiglu, NormKind::rms, true});
    if (!fp8) all.push_back({2, 4096, 11008, fp8, A::swiglu, NormKind::rms, true});
    for (const A kind : {A::swiglu_clamped, A::gelu_exact, A::relu, A::silu, A::geglu})
      all.push_back({3, 640, 1152, fp8, kind, NormKind::rms_zero_centered, true});
  }
  return all;
}

// Another summation order changes the rounding of single results (2^-9), and such an input may be quantized differently
// (2^-4). Each op gets the same input, so errors do not accumulate.
TEST(DecodeMegakernelGpu, EachGemmMatchesSeparateOps) {
  TE_REQUIRE_ABILITY(hopper_kernels);
  const Context gpu = Context::cuda(0);
  for (const MegakernelCase& c : megakernel_cases()) {
    Layer layer(gpu, c);
    layer.fill(40);
    for (const MegakernelGemm& gemm : layer.gemms) {
      ASSERT_TRUE(has_decode_megakernel(gpu, {{gemm}, layer.barrier})) << text(c);
      decode_megakernel(gpu, {{gemm}, layer.barrier});
      std::vector<std::vector<float>> actual;
      for (const TestTensor* result : layer.results()) actual.push_back(result->floats());
      layer.run_op(gemm);
      for (size_t i = 0; i < actual.size(); ++i) {
        const std::vector<float> expected = layer.results()[i]->floats();
        if (gemm.out.data != layer.results()[i]->get().data) continue;
        EXPECT_LT(testing::relative_error(actual[i], expected), c.fp8 ? 8e-3 : 2e-3)
            << text(c) << ", result " << i;
      }
    }
  }
}

// Logits. Values that are quantized or normalized before them may be rounded differently in some places.
TEST(DecodeMegakernelGpu, Fp32ResultsAreNotRounded) {
  TE_REQUIRE_ABILITY(hopper_kernels);
  const Context gpu = Context::cuda(0);
  for (const bool fp8 : {false, true}) {
    for (const int64_t rows : {1, 4}) {
      Layer layer(gpu, {rows, 2048, 5632, fp8, ActivationKind::swiglu, NormKind::rms, false});
      layer.middle.fill_normal(50);
      layer.mlp.fill_normal(51);
      const TestTensor out(gpu, DType::f32, layer.qkv.get().shape);
      MegakernelGemm last = layer.gemms.back();
      last.out = out;
      decode_megakernel(gpu, {{last}, layer.barrier});
      const std::vector<float> actual = out.floats();
      layer.run_op(last);
      const std::vector<float> expected = out.floats();
      EXPECT_LT(testing::relative_error(actual, expected), 1e-3) << rows << (fp8 ? " FP8" : " BF16");
      const auto rounded =
          std::ranges::count_if(actual, [](float x) { return x == to_float(from_float<bfloat16>(x)); });
      EXPECT_LT(rounded, static_cast<std::ptrdiff_t>(actual.size() / 50));
    }
  }
  Layer layer(gpu, {1, 128, 384, false, ActivationKind::swiglu, NormKind::rms, false});
  const TestTensor out(gpu, DType::f32, layer.activated.get().shape);
  MegakernelGemm activated = layer.gemms[1];
  activated.out = out;
  EXPECT_FALSE(has_decode_megakernel(gpu, {{activated}, layer.barrier}));
}

// The barrier between GEMMs: each reads what all blocks have written.
TEST(DecodeMegakernelGpu, EqualsSeparateMegakernelsBitwise) {
  TE_REQUIRE_ABILITY(hopper_kernels);
  const Context gpu = Context::cuda(0);
  for (const MegakernelCase& c : megakernel_cases()) {
    Layer layer(gpu, c);
    if (!has_decode_megakernel(gpu, {layer.gemms, layer.barrier})) {
      EXPECT_TRUE(c.rows > 1 && c.ffn > 4096) << text(c);
      continue;
    }
    for (uint64_t iteration = 0; iteration < 10; ++iteration) {
      layer.fill(100 + 10 * iteration);
      layer.run_separately();
      std::vector<std::vector<uint8_t>> expected;
      for (const TestTensor* result : layer.results()) expected.push_back(result->raw());
      for (const TestTensor* result : layer.results()) gpu.zero(*result);
      layer.run_as_megakernel();
      layer.run_as_megakernel();
      for (size_t i = 0; i < expected.size(); ++i)
        ASSERT_EQ(testing::count_different(layer.results()[i]->raw(), expected[i], 2), 0)
            << text(c) << ", iteration " << iteration << ", result " << i;
    }
  }
}

TEST(DecodeMegakernelGpu, RowsDoNotDependOnOtherRows) {
  TE_REQUIRE_ABILITY(hopper_kernels);
  const Context gpu = Context::cuda(0);
  const MegakernelCase one{1, 2048, 5632, false, ActivationKind::swiglu, NormKind::rms, false};
  MegakernelCase many = one;
  many.rows = 7;
  Layer alone(gpu, one), batched(gpu, many);
  batched.fill(7);
  batched.run_as_megakernel();
  const std::vector<uint8_t> all = batched.qkv.raw();
  for (int64_t row = 0; row < many.rows; ++row) {
    gpu.copy(alone.x, batched.x.get().slice_rows(row, 1));
    gpu.copy(alone.residual, batched.residual.get().slice_rows(row, 1));
    alone.run_as_megakernel();
    const auto begin = all.begin() + row * 3 * one.hidden * 2;
    EXPECT_EQ(alone.qkv.raw(), std::vector<uint8_t>(begin, begin + 3 * one.hidden * 2)) << row;
  }
}

TEST(DecodeMegakernelGpu, RejectsUnsupportedSizes) {
  TE_REQUIRE_ABILITY(hopper_kernels);
  const Context gpu = Context::cuda(0), cpu = Context::cpu();
  Layer nine(gpu, {9, 128, 384, false, ActivationKind::swiglu, NormKind::rms, false});
  EXPECT_FALSE(has_decode_megakernel(gpu, {nine.gemms, nine.barrier}));
  Layer wide(gpu, {8, 4096, 11008, false, ActivationKind::swiglu, NormKind::rms, false});
  EXPECT_FALSE(has_decode_megakernel(gpu, {wide.gemms, wide.barrier}));
  Layer odd(gpu, {1, 144, 384, false, ActivationKind::swiglu, NormKind::rms, false});
  EXPECT_FALSE(has_decode_megakernel(gpu, {odd.gemms, odd.barrier}));
  // In FP8, rows of 192 are one and a half chunks of 128 bytes, in BF16 three.
  for (const bool fp8 : {false, true}) {
    Layer chunks(gpu, {1, 192, 384, fp8, ActivationKind::swiglu, NormKind::rms, false});
    EXPECT_EQ(has_decode_megakernel(gpu, {chunks.gemms, chunks.barrier}), !fp8);
  }
  EXPECT_FALSE(has_decode_megakernel(cpu, {nine.gemms, nine.barrier}));
}

}  // namespace
}  // namespace te::kernels
