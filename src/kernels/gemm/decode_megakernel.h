// Linears of a few rows one behind another in one launch: what the generation of a token runs between two attentions,
// or behind the last,
//
//   out = activation(norm(x + delta) w^T + bias)        with or without norm, delta, bias and activation
//
// for each, whose x or delta is another's out. The values are those of norm_forward, quantize_current_scaling, gemm and
// the activation one after another, rounded where these round; only sums are added in another order, and those of E4M3
// over 128 values as wgmma adds them (hopper/wgmma.cuh).
//
// Such a pass takes as long as reading the weights; what a kernel of its own costs each linear is that memory stands
// still while it begins and ends. Here every multiprocessor knows beforehand which tiles of which weights it will
// multiply, and reads ahead across the linears' borders (decode_megakernel.cu).
//
// On a GPU alone, in BF16, with weights in BF16 or in E4M3 with one scale; elsewhere the caller launches the ops
// (has_decode_megakernel). Deterministic; a row's bits depend on no other row, but for those that
// share an amax.
#pragma once

#include <cstdint>
#include <vector>

#include "core/device.h"
#include "core/tensor.h"
#include "kernels/activation/activation.h"
#include "kernels/gemm/matrix.h"
#include "kernels/norm/norm.h"

namespace te::kernels {

/// In front of a linear; gamma empty: none.
struct MegakernelNorm {
  NormKind kind = NormKind::rms;
  float eps = 1e-5f;
  Tensor delta;  ///< optional bf16 [rows, k]: x + delta, rounded, is normalized
  Tensor sum;    ///< out [rows, k], with delta; not x
  Tensor gamma;  ///< bf16 [k]
  Tensor beta;   ///< bf16 [k], layer only
};

struct MegakernelGemm {
  Tensor x;  ///< bf16 [rows, k]
  MegakernelNorm norm;
  Matrix weight;  ///< [n, k] bf16, or E4M3 with ScaleLayout::tensor; complete before the work launched last
  /// E4M3: how the input is cast with the scale that it asks for itself (QuantizeCurrentScaling).
  int margin = 0;
  bool power_of_two = false;
  Tensor bias;  ///< optional bf16 [n]
  bool activated = false;
  ActivationKind kind = ActivationKind::swiglu;
  float clamp = 0;
  Tensor out;  ///< bf16 [rows, n], of a gated activation [rows, n / 2]; or, without an activation, fp32
};

constexpr size_t kMaxMegakernelGemms = 4;

struct DecodeMegakernel {
  std::vector<MegakernelGemm> gemms;  ///< at most kMaxMegakernelGemms; a tensor is written by one of them
  /// int32 [1], 0 before the first use; of no other chain that may run at the same time.
  Tensor barrier;
};

/// False: no kernel is made for this device, these rows (at most kFewRows, and so many that their inputs, filled up to
/// a power of two of them, find room in shared memory), types, sizes (one row: norms of up to 8192 elements) or
/// alignments.
bool has_decode_megakernel(const Context& context, const DecodeMegakernel& megakernel);
/// InternalError without has_decode_megakernel().
void decode_megakernel(const Context& context, const DecodeMegakernel& megakernel);

}  // namespace te::kernels
