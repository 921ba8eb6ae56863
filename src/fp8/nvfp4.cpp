// NVFP4: E2M1 values with a scale (E4M3) per 16 values and a factor (FP32) per tensor, with the parts of the recipe in
// "Pretraining Large Language Models with NVFP4" (arXiv 2509.25149), as in Transformer Engine's NVFP4BlockScaling:
//
//   blocks      weights have a scale per 16 x 16 values, so that fprop and dgrad read the same values
//   hadamard    both operands of wgrad have a random Hadamard transform along the tokens, which spreads outliers
//   stochastic  gradients are rounded stochastically, so that small ones do not vanish on average
//
// Layers that stay in BF16 are a matter of the config. GPUs before Blackwell have no GEMMs with such scales; there the
// values times their group's scale are multiplied in BF16, where they are exact, and GEMMs apply the factors.
#include <algorithm>

#include "core/random.h"
#include "fp8/scaling.h"
#include "kernels/quantize/quantize_nvfp4.h"

namespace te::fp8 {
namespace {

class Nvfp4 final : public Scaling {
 public:
  Nvfp4(const config::PrecisionConfig& precision, bool native)
      : Scaling(false),
        emulation_(native ? std::make_unique<Nvfp4>(precision, false) : nullptr),
        blocks_(has(precision, "blocks")),
        hadamard_(has(precision, "hadamard")),
        stochastic_(has(precision, "stochastic")) {}
  kernels::ScaleLayout layout(OperandRole) const override {
    return emulated() ? kernels::ScaleLayout::factor : kernels::ScaleLayout::nvfp4;
  }
  bool emulated() const override { return emulation_ == nullptr; }
  const Scaling* emulation() const override { return emulated() ? this : emulation_.get(); }
  void quantize(const Context& context, const GroupedOperand& operand) const override {
    const kernels::QuantizeGroups& groups = operand.groups;
    const OperandRole role = operand.operand.role;
    const bool stochastic = stochastic_ && role == OperandRole::grad_output;
    kernels::quantize_nvfp4(context, {.x = groups.x,
                                      .rowwise = groups.rowwise,
                                      .columnwise = groups.columnwise,
                                      .blocks = blocks_ && role == OperandRole::weight,
                                      .hadamard = hadamard_ && role != OperandRole::weight,
                                      .stochastic = stochastic,
                                      .seed = operand.seed,
                                      .stream = stochastic ? stream_of(operand) : 0,
                                      .margin = groups.margin,
                                      .restore = operand.restore,
                                      .amax = groups.amax,
                                      .counters = groups.counters,
                                      .all_reduce_amax = operand.all_reduce_amax});
  }

 private:
  /// Random numbers of a gradient: quantize_nvfp4() uses this stream and the next.
  static uint64_t stream_of(const GroupedOperand& operand) {
    return te::stream_of("nvfp4." + operand.operand.linear.name()) +
           2 * static_cast<uint64_t>(operand.sample);
  }
  static bool has(const config::PrecisionConfig& precision, const char* part) {
    return std::ranges::find(precision.nvfp4_parts, part) != precision.nvfp4_parts.end();
  }
  std::unique_ptr<Scaling> emulation_;  ///< null: this is emulated
  bool blocks_, hadamard_, stochastic_;
};

}  // namespace

std::unique_ptr<Scaling> make_nvfp4_scaling(const config::PrecisionConfig& precision) {
  return std::make_unique<Nvfp4>(precision, precision.mx_gemms);
}

}  // namespace te::fp8
