// MXFP8 (OCP Microscaling): E4M3 values with a power-of-two scale (E8M0) per 32 values, as Transformer Engine's
// MXFP8BlockScaling. Rows and columns have separate scales, so both layouts are quantized from high precision. GPUs
// before Blackwell have no GEMMs with such scales; there the recipe is emulated with the same values.
#include "fp8/scaling.h"
#include "kernels/quantize/quantize_mx.h"

namespace te::fp8 {
namespace {

class Mxfp8 final : public Scaling {
 public:
  explicit Mxfp8(bool native)
      : Scaling(true), emulation_(native ? std::make_unique<Mxfp8>(false) : nullptr) {}
  kernels::ScaleLayout layout(OperandRole) const override {
    return emulated() ? kernels::ScaleLayout::none : kernels::ScaleLayout::mx;
  }
  bool emulated() const override { return emulation_ == nullptr; }
  const Scaling* emulation() const override { return emulated() ? this : emulation_.get(); }
  void quantize(const Context& context, const GroupedOperand& operand) const override {
    const kernels::QuantizeGroups& groups = operand.groups;
    kernels::quantize_mx(context, {.x = groups.x,
                                   .format = operand.operand.format,
                                   .rowwise = groups.rowwise,
                                   .columnwise = groups.columnwise,
                                   .margin = groups.margin,
                                   .amax = groups.amax,
                                   .counters = groups.counters});
  }

 private:
  std::unique_ptr<Scaling> emulation_;  ///< null: this is emulated
};

}  // namespace

std::unique_ptr<Scaling> make_mxfp8_scaling(const config::PrecisionConfig& precision) {
  return std::make_unique<Mxfp8>(precision.mx_gemms);
}

}  // namespace te::fp8
