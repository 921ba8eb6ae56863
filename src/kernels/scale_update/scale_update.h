// Delayed and tensorwise scaling: computation of scales from amax values, for all tensors of the model in one launch.
// Sources: Micikevicius et al., "FP8 formats for deep learning" (arXiv 2209.05433), and NVIDIA Transformer Engine's
// DelayedScaling, with two differences below that keep non-finite values out of the state.
#pragma once

#include "core/choices.h"
#include "core/device.h"
#include "core/tensor.h"

namespace te::kernels {

/// One optimizer step of the delayed recipe, for n tensors. Unless *skip is non-zero:
///   history[position, i] = amax[i] if finite, else 0  (a non-finite amax would corrupt the maximum below)
///   reference = max over history[:, i], or amax[i] for most_recent
///   scale[i]  = fp8_max[i] * 2^-margin / reference if reference is finite and > 0, else the old scale;
///               an infinite scale becomes FLT_MAX
///   position  = (position + 1) % len
/// amax[i] is always reset to 0; a skipped step keeps history, position and scales.
struct DelayedScaleUpdate {
  Tensor amax;      ///< [n] fp32, in/out
  Tensor history;   ///< [len, n] fp32, in/out, a ring buffer
  Tensor position;  ///< [1] int32, in/out
  Tensor scale;     ///< [n] fp32, in/out
  Tensor fp8_max;   ///< [n] fp32: 448 or 57344
  int margin = 0;
  AmaxAlgo compute = AmaxAlgo::max;
  const int32_t* skip = nullptr;  ///< device flag, or null
};
void delayed_scale_update(const Context& context, const DelayedScaleUpdate& args);

/// Tensorwise (current) scaling, elementwise: scale = fp8_max * 2^-margin / amax, or 1 if amax is 0, infinite or NaN;
/// an infinite scale becomes FLT_MAX. With power_of_two it is rounded down to a power of two, at most 2^126.
struct CurrentScale {
  Tensor amax;   ///< [n] fp32
  Tensor scale;  ///< [n] fp32, output
  float fp8_max = 448.0f;
  int margin = 0;
  bool power_of_two = false;
};
void current_scale(const Context& context, const CurrentScale& args);

/// Scales of n tensors from their own amax values, equal to those of current scaling (kernels/quantize/fp8_output.h,
/// current_scale):
///   scale[i] = fp8_max[i] * 2^-margin / amax[i], or 1 if amax[i] is 0, infinite or NaN; rounded down to a power of two
///   if power_of_two[i] is not 0
struct CurrentScales {
  Tensor amax;          ///< [n] fp32
  Tensor fp8_max;       ///< [n] fp32
  Tensor power_of_two;  ///< [n] u8
  Tensor scale;         ///< [n] fp32, output
  int margin = 0;
};
void current_scales(const Context& context, const CurrentScales& args);

/// Writes the results of current scaling for a tensor that was quantized in parts. All pointers are to device memory;
/// null outputs are not written.
struct RecordCurrentScale {
  const float* found_amax = nullptr;   ///< [1]
  const float* found_scale = nullptr;  ///< [1]
  float* amax = nullptr;               ///< [1]: updated with the maximum, NaN > inf > finite
  float* current_amax = nullptr;       ///< [1]: receives found_amax
  float* scale = nullptr;              ///< [1]: receives found_scale
  float* scale_inv = nullptr;          ///< [1]: receives 1 / found_scale
};
void record_current_scale(const Context& context, const RecordCurrentScale& args);

}  // namespace te::kernels
