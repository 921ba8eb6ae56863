// Delayed and tensorwise scaling: from amax to scale, for all tensors of the model in one launch.
// Source: Micikevicius et al., "FP8 formats for deep learning" (arXiv 2209.05433), and the public behaviour
// of NVIDIA Transformer Engine's DelayedScaling, with two differences that keep bad values out of the state:
// see below.
#pragma once

#include "core/device.h"
#include "core/tensor.h"

namespace te::kernels {

enum class AmaxCompute : uint8_t { max, most_recent };

/// One optimizer step of the delayed recipe, for n tensors. Unless *skip is non-zero:
///   history[position, i] = amax[i] if finite, else 0  (a non-finite amax would poison the max below)
///   reference = max over history[:, i], or amax[i] for most_recent
///   scale[i]  = fp8_max[i] * 2^-margin / reference if reference is finite and > 0, else the old scale;
///               a scale that comes out inf becomes FLT_MAX
///   position  = (position + 1) % len
/// In every case amax[i] becomes 0: a skipped step leaves history, position and scales as they were.
struct DelayedScaleUpdate {
  Tensor amax;      ///< [n] fp32, in/out
  Tensor history;   ///< [len, n] fp32, in/out, a ring
  Tensor position;  ///< [1] int32, in/out
  Tensor scale;     ///< [n] fp32, in/out
  Tensor fp8_max;   ///< [n] fp32: 448 or 57344
  int margin = 0;
  AmaxCompute compute = AmaxCompute::max;
  const int32_t* skip = nullptr;  ///< device flag, or null
};
void delayed_scale_update(const Context& context, const DelayedScaleUpdate& args);

/// Tensorwise (current) scaling, elementwise: scale = fp8_max * 2^-margin / amax, or 1 where amax is 0, inf
/// or NaN; a scale that comes out inf becomes FLT_MAX.
struct CurrentScale {
  Tensor amax;   ///< [n] fp32
  Tensor scale;  ///< [n] fp32, out
  float fp8_max = 448.0f;
  int margin = 0;
};
void current_scale(const Context& context, const CurrentScale& args);

/// Scales of n tensors by their own amaxes, as casts that find them do (kernels/quantize/fp8_output.h, current_scale):
///   scale[i] = fp8_max[i] * 2^-margin / amax[i], or 1 where amax is 0, inf or NaN; where power_of_two[i] is not 0,
///   rounded down to a power of two
struct OwnScales {
  Tensor amax;          ///< [n] fp32
  Tensor fp8_max;       ///< [n] fp32
  Tensor power_of_two;  ///< [n] u8
  Tensor scale;         ///< [n] fp32, out
  int margin = 0;
};
void own_scales(const Context& context, const OwnScales& args);

/// What such a cast leaves behind, of one tensor that has been cast in parts. In memory of the device; null: not
/// wanted.
struct EnterOwnScale {
  const float* found_amax = nullptr;   ///< [1]
  const float* found_scale = nullptr;  ///< [1]
  float* amax = nullptr;               ///< [1]: raised, NaN > inf > finite
  float* current_amax = nullptr;       ///< [1]: receives found_amax
  float* scale = nullptr;              ///< [1]: receives found_scale
  float* scale_inv = nullptr;          ///< [1]: receives 1 / found_scale
};
void enter_own_scale(const Context& context, const EnterOwnScale& args);

}  // namespace te::kernels
