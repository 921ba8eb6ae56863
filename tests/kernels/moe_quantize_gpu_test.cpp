// Quantization of experts' operands in a pipeline with several items per block, and activations that quantize their
// result: bit for bit what the reference, or the activation and the quantization one after another, give.
#include "moe_quantize_cases.h"

namespace te::kernels {
namespace {

using testing::cpu;

// Enough rows and columns that each block has several items of several steps, with ragged ranges of experts.
TEST(MoeQuantizeGpu, ManyItemsPerBlockEqualReference) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (const auto& [c, cols] :
       {std::pair<MoeCase, int64_t>{{9001, 37, 4, 16}, 520}, {{35001, 5, 1, 16}, 264}})
    for (const ExpertScaling scaling : {ExpertScaling::corrected, ExpertScaling::power_of_two}) {
      const auto expected = quantize_permuted(cpu(), c, cols, DType::bf16, scaling, true, false);
      for (const bool from_source : {false, true})
        EXPECT_TRUE(quantize_permuted(gpu, c, cols, DType::bf16, scaling, from_source, false) == expected)
            << cols << " " << static_cast<int>(scaling) << " " << from_source;
    }
}

void expect_equal(const Context& context, const ActivationCase& c) {
  EXPECT_TRUE(activations(context, c, true) == activations(context, c, false))
      << c.order.tokens << " tokens, " << c.order.experts << " experts, " << c.ffn << " columns, scaling "
      << static_cast<int>(c.scaling) << ", counted " << c.counted << ", layouts " << c.rowwise
      << c.columnwise;
}

TEST(MoeQuantizeGpu, ActivationsInOnePassEqualSeparateOnes) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (MoeCase order : kMoeCases) {
    order.alignment = std::max<int64_t>(order.alignment, 16);
    for (const ExpertScaling scaling : kExpertScalings) {
      for (const int64_t ffn : {8, 72, 264, 776}) expect_equal(gpu, {order, ffn, scaling});
      expect_equal(gpu, {order, 72, scaling, ActivationKind::swiglu, true});
      expect_equal(gpu, {order, 72, scaling, ActivationKind::swiglu, false, true, false});
      expect_equal(gpu, {order, 72, scaling, ActivationKind::swiglu, false, false, true});
    }
    // Not in one kernel.
    for (const ActivationKind kind : {ActivationKind::gelu, ActivationKind::swiglu_clamped})
      expect_equal(gpu, {order, 72, ExpertScaling::corrected, kind});
    expect_equal(gpu, {order, 37, ExpertScaling::corrected});
    ActivationCase fp32{order, 72, ExpertScaling::corrected};
    fp32.dtype = DType::f32, fp32.gradient = DType::e4m3;
    expect_equal(gpu, fp32);
  }
}

TEST(MoeQuantizeGpu, ManyItemsOfActivationsEqualSeparateOnes) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (const ExpertScaling scaling : {ExpertScaling::corrected, ExpertScaling::power_of_two}) {
    expect_equal(gpu, {{9001, 37, 8, 16}, 520, scaling});
    ActivationCase e4m3{{20001, 3, 2, 16}, 768, scaling};
    e4m3.gradient = DType::e4m3;
    expect_equal(gpu, e4m3);
  }
}

}  // namespace
}  // namespace te::kernels
