// Rotary position embedding in the rotate-half form (Su et al., arXiv 2104.09864; the layout of Hugging
// Face's Llama). With a, b the halves of a head and one angle per pair:
//   [a, b] -> [a cos - b sin, b cos + a sin]
//   angle(position, i) = position * theta^(-2 i / head_dim)
// Works in place on the packed output of linear_qkv; attention reads q, k and v there through strides, so the
// QKV split needs no pass of its own. The backward pass ends in linear_qkv's grad_output, which may leave as FP8.
#pragma once

#include <cstdint>

#include "core/device.h"
#include "core/tensor.h"
#include "kernels/quantize/fp8_output.h"

namespace te::kernels {

struct Rope {
  Tensor qkv;       ///< [batch * seq, (heads + 2 groups) * head_dim], q | k | v, in/out: q and k are rotated
  Tensor cos, sin;  ///< [>= seq, head_dim / 2] fp32
  int64_t seq = 0;  ///< position of a row = row % seq, unless positions says it
  int64_t num_heads = 0;
  int64_t num_query_groups = 0;
  int64_t head_dim = 0;
  bool backward = false;  ///< rotate by the negative angle: the gradient
  Tensor positions;       ///< optional int32 [rows], below cos.dim(0); seq is then not read
  Fp8Output out;   ///< optional: the whole of qkv, rotated, is cast here; what qkv then holds is unspecified
  Tensor dbias;    ///< optional, with out: += column sums, see kernels/quantize
  Tensor scratch;  ///< fp32, quantize_scratch_elements(rows, columns), with dbias
};
void rope(const Context& context, const Rope& args);

/// How the frequencies of a pretrained model are changed for longer sequences (Hugging Face's `rope_scaling`).
///   linear  frequency / factor (position interpolation: Chen et al., arXiv 2306.15595)
///   llama3  with wavelength = 2 pi / frequency and L = original_max_position_embeddings (Llama 3.1):
///             wavelength < L / high_freq_factor   frequency
///             wavelength > L / low_freq_factor    frequency / factor
///             between: (1 - s) frequency / factor + s frequency,
///             s = (L / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor)
///   yarn    (Peng et al., arXiv 2309.00071) pair i turns r times within L at i = D ln(L / (2 pi r)) / (2 ln theta), D
///           being the rotated channels. With low and high the i of beta_fast and beta_slow turns (rounded down and up
///           if truncate says so, within 0 and D - 1): s frequency + (1 - s) frequency / factor, s = 1 - clamp((i -
///           low) / (high - low)); cosine and sine are multiplied by attention_factor
enum class RopeScalingKind : uint8_t { none, linear, llama3, yarn };
struct RopeScaling {
  RopeScalingKind kind = RopeScalingKind::none;
  double factor = 1.0;                              ///< at least 1
  double low_freq_factor = 1.0;                     ///< llama3 only, below high_freq_factor
  double high_freq_factor = 4.0;                    ///< llama3 only
  int64_t original_max_position_embeddings = 8192;  ///< llama3 and yarn
  double beta_fast = 32.0;                          ///< yarn only
  double beta_slow = 1.0;                           ///< yarn only, below beta_fast
  double attention_factor = 0.0;                    ///< yarn only; 0: 0.1 ln(factor) + 1
  bool truncate = true;                             ///< yarn only
};

/// Fills host tables of [seq, head_dim / 2] in double precision, rounded to FP32. The first `rotary_pairs` pairs of a
/// head turn (0: all), with the frequencies of a head of 2 * rotary_pairs channels; the others have cosine 1 and sine
/// 0.
void rope_tables(int64_t seq, int64_t head_dim, double theta, float* cos, float* sin,
                 const RopeScaling& scaling = {}, int64_t rotary_pairs = 0);

}  // namespace te::kernels
