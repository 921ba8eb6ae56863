// What distinguishes the recipes: which values share a scale, and when the scale is known. Everything else is common to
// all recipes (quantizer.h, recipe.h), so a new recipe is a class and a case of make_scaling(); with groups of a new
// kind also a ScaleLayout and a kernel.
//
//   delayed     the scale of step n comes from the amaxes of earlier steps, so the kernel that produces an operand can
//               quantize it in the same pass; a tensor that overflows the scale is requantized with its current scale
//   tensorwise  the scale comes from the tensor's current amax: an amax pass, then quantization; no state
//   rowwise     as tensorwise, with a scale per token (activations, gradients) and per output channel (weights); for
//               columnwise layouts per channel and per input channel; no state, no communication
//   blockwise   as tensorwise, with a scale per 1 x 128 values (activations, gradients) and per 128 x 128 values
//               (weights), as in DeepSeek-V3
//   mxfp8       a power-of-two scale per 32 values of each layout, emulated before Blackwell (mxfp8.cpp)
//   nvfp4       4-bit values with a scale per 16 values and a factor per tensor, emulated as mxfp8 (nvfp4.cpp)
#pragma once

#include <functional>
#include <memory>

#include "config/config.h"
#include "fp8/scale_table.h"
#include "kernels/quantize/quantize_groups.h"
#include "parallel/tensor_parallel.h"

namespace te::fp8 {

/// How quantization of a tensor with one scale gets it (kernels/quantize/fp8_output.h, Fp8Requantize): uses a given
/// scale, corrects a given scale that overflows, or computes the current scale.
enum class ScaleSource : uint8_t { given, corrected, current };

/// A tensor to quantize with scales of groups.
struct GroupedOperand {
  kernels::QuantizeGroups groups;
  OperandInfo operand;
  uint64_t seed = 0;  ///< as in QuantizeMode
  int64_t sample = 0;
  bool restore = false;  ///< emulated: undo transformations and factors, for statistics
  /// All-reduces an amax over ranks with other parts of the tensor; may be empty.
  std::function<void(const Context&, const Tensor&)> all_reduce_amax{};
};

class Scaling {
 public:
  /// `power_of_two`: current scales are rounded down to powers of two. With ScaleLayout::tensor the last scale then
  /// predicts the next one.
  explicit Scaling(bool power_of_two) : power_of_two_(power_of_two) {}
  virtual ~Scaling() = default;
  bool power_of_two() const { return power_of_two_; }
  /// Which values share a scale. With ScaleLayout::tensor, producers can quantize. `none` or `factor` if emulated.
  virtual kernels::ScaleLayout layout(OperandRole role) const = 0;
  bool one_scale() const { return layout(OperandRole::input) == kernels::ScaleLayout::tensor; }
  /// With one scale per tensor.
  virtual ScaleSource source(OperandRole /*role*/) const { return ScaleSource::current; }
  /// Length of the amax history from which Recipe::update() computes the next step's scales; 0: no state. With a
  /// history, calibration passes must initialize the scales before the first step.
  virtual int64_t history_len() const { return 0; }
  /// True if a rank of sequence parallelism can quantize its share of the `tokens` tokens: with one scale per tensor,
  /// from an all-reduced amax, or with scales that each cover values of one rank (model/operand_gather.h).
  virtual bool gathers_quantized(const parallel::TensorParallel& /*ranks*/, int64_t /*tokens*/) const {
    return one_scale();
  }
  /// True if layouts have dequantized values in high precision (the dtype of x), for GEMMs in high precision. Every
  /// such value is exact.
  virtual bool emulated() const { return false; }
  /// An emulated scaling with the same values, for statistics; null if kernels::tensor_stats knows this one.
  virtual const Scaling* emulation() const { return emulated() ? this : nullptr; }
  /// With other layouts than ScaleLayout::tensor.
  virtual void quantize(const Context& context, const GroupedOperand& operand) const {
    kernels::quantize_groups(context, operand.groups);
  }

 private:
  bool power_of_two_;
};

std::unique_ptr<Scaling> make_mxfp8_scaling(const config::PrecisionConfig& precision);
std::unique_ptr<Scaling> make_nvfp4_scaling(const config::PrecisionConfig& precision);
std::unique_ptr<Scaling> make_scaling(config::Fp8Recipe recipe, const config::PrecisionConfig& precision);

}  // namespace te::fp8
