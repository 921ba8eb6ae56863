// MXFP8 (OCP Microscaling): E4M3 values with a power-of-two scale (E8M0) per 32 values, as Transformer Engine's
// MXFP8BlockScaling. Rows and columns have separate scales, so both layouts are quantized from high precision. GEMMs of
// Hopper GPUs have no such scales; the recipe is emulated with the same values.
#include "fp8/scaling.h"
#include "kernels/quantize/quantize_mx.h"

namespace te::fp8 {
namespace {

class Mxfp8 final : public Scaling {
 public:
  Mxfp8() : Scaling(true) {}
  kernels::ScaleLayout layout(OperandRole) const override { return kernels::ScaleLayout::none; }
  bool emulated() const override { return true; }
  void quantize(const Context& context, const GroupedOperand& operand) const override {
    const kernels::QuantizeGroups& groups = operand.groups;
    kernels::quantize_mx(context, {.x = groups.x,
                                   .format = operand.operand.format,
                                   .rowwise = groups.rowwise.values,
                                   .columnwise = groups.columnwise.values,
                                   .margin = groups.margin,
                                   .amax = groups.amax,
                                   .counters = groups.counters});
  }
};

}  // namespace

std::unique_ptr<Scaling> make_mxfp8_scaling() {
  return std::make_unique<Mxfp8>();
}

}  // namespace te::fp8
