// Rotary position embedding in the rotate-half form (Su et al., arXiv 2104.09864; the layout of Hugging
// Face's Llama). With a, b the halves of a head and one angle per pair:
//   [a, b] -> [a cos - b sin, b cos + a sin]
//   angle(position, i) = position * theta^(-2 i / head_dim)
// Works in place on the packed output of linear_qkv. Attention reads q, k and v there with strides, so splitting QKV
// needs no extra pass. The backward pass ends with linear_qkv's grad_output, which can be quantized to FP8 in the same
// pass.
#pragma once

#include <cstdint>

#include "core/choices.h"
#include "core/device.h"
#include "core/tensor.h"
#include "kernels/quantize/fp8_output.h"

namespace te::kernels {

struct Rope {
  Tensor qkv;       ///< [batch * seq, (heads + 2 groups) * head_dim], q | k | v, in/out: q and k are rotated
  Tensor cos, sin;  ///< [>= seq, head_dim / 2] fp32
  int64_t seq = 0;  ///< position of a row = row % seq, unless `positions` is given
  int64_t num_heads = 0;
  int64_t num_query_groups = 0;
  int64_t head_dim = 0;
  bool backward = false;  ///< rotate by the negative angle, for the gradient
  Tensor positions;       ///< optional int32 [rows], below cos.dim(0); seq is then ignored
  Fp8Output out;   ///< optional FP8 output of all rotated qkv; the contents of qkv are unspecified afterwards
  Tensor dbias;    ///< optional, with out: column sums are added, see kernels/quantize
  Tensor scratch;  ///< fp32 [quantize_scratch_elements(rows, columns)]; required with dbias
};
void rope(const Context& context, const Rope& args);

/// Scaling of a pretrained model's frequencies for longer sequences (Hugging Face's `rope_scaling`).
///   linear  frequency / factor (position interpolation: Chen et al., arXiv 2306.15595)
///   llama3  with wavelength = 2 pi / frequency and L = original_max_position_embeddings (Llama 3.1):
///             wavelength < L / high_freq_factor   frequency
///             wavelength > L / low_freq_factor    frequency / factor
///             between: (1 - s) frequency / factor + s frequency,
///             s = (L / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor)
///   yarn    (Peng et al., arXiv 2309.00071) pair i rotates r times within L at i = D ln(L / (2 pi r)) / (2 ln theta),
///           where D is the number of rotated channels. With low and high the i of beta_fast and beta_slow rotations
///           (with truncate rounded down and up, within 0 and D - 1): s frequency + (1 - s) frequency / factor,
///           s = 1 - clamp((i - low) / (high - low)); cosine and sine are multiplied by attention_factor
using te::RopeScaling;

/// Fills host tables of [seq, head_dim / 2], computed in double precision and rounded to FP32. Only the first
/// `rotary_pairs` pairs of a head are rotated (0: all), with the frequencies of a head of 2 * rotary_pairs channels;
/// the other pairs have cosine 1 and sine 0.
void rope_tables(int64_t seq, int64_t head_dim, double theta, float* cos, float* sin,
                 const RopeScaling& scaling = {}, int64_t rotary_pairs = 0);

}  // namespace te::kernels
