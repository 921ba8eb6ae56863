// Several linear layers with few rows in one launch. When a token is generated, such a launch runs all linears between
// two attentions, or after the last one:
//
//   out = activation(norm(x + delta) w^T + bias)        with or without norm, delta, bias and activation
//
// where x or delta of one linear is the output of another. The results equal those of norm_forward,
// quantize_current_scaling, gemm and the activation run one after another, with the same roundings. Only the summation
// order differs, and E4M3 products are summed over 128 values as wgmma does it (hopper/wgmma.cuh).
//
// The time is bound by reading the weights, and with separate kernels the memory is idle while kernels start and end.
// Here every SM knows in advance which weight tiles it will multiply, and prefetches them across the borders of the
// linears (decode_megakernel.cu).
//
// Runs only on GPUs and in BF16, with BF16 weights or E4M3 weights with one scale. In other cases the caller launches
// the separate ops (has_decode_megakernel). Deterministic; a row's result does not depend on other rows, except through
// a common amax.
#pragma once

#include <cstdint>
#include <vector>

#include "core/device.h"
#include "core/tensor.h"
#include "kernels/activation/activation.h"
#include "kernels/gemm/matrix.h"
#include "kernels/norm/norm.h"

namespace te::kernels {

/// Norm before a linear; empty gamma: none.
struct MegakernelNorm {
  NormKind kind = NormKind::rms;
  float eps = 1e-5f;
  Tensor delta;  ///< optional bf16 [rows, k]: x + delta, rounded, is normalized
  Tensor sum;    ///< output [rows, k] with delta: x + delta; must not be x
  Tensor gamma;  ///< bf16 [k]
  Tensor beta;   ///< bf16 [k], layer norm only
};

struct MegakernelGemm {
  Tensor x;  ///< bf16 [rows, k]
  MegakernelNorm norm;
  Matrix weight;  ///< [n, k] bf16, or E4M3 with ScaleLayout::tensor; complete before the last launched work
  /// E4M3: parameters of the input's quantization with current scaling (QuantizeCurrentScaling).
  int margin = 0;
  bool power_of_two = false;
  Tensor bias;  ///< optional bf16 [n]
  bool activated = false;
  ActivationKind kind = ActivationKind::swiglu;
  float clamp = 0;
  Tensor out;  ///< output bf16 [rows, n], with a gated activation [rows, n / 2]; fp32 only without activation
};

constexpr size_t kMaxMegakernelGemms = 4;

struct DecodeMegakernel {
  std::vector<MegakernelGemm> gemms;  ///< at most kMaxMegakernelGemms; no two write the same tensor
  /// int32 [1], 0 before the first use. Megakernels that may run concurrently must not share it.
  Tensor barrier;
};

/// Whether a kernel exists for this device, number of rows (at most kFewRows; the inputs, padded to a power of two of
/// rows, must fit into shared memory), dtypes, sizes (with one row, norms of up to 8192 elements) and alignments.
bool has_decode_megakernel(const Context& context, const DecodeMegakernel& megakernel);
/// Throws InternalError unless has_decode_megakernel().
void decode_megakernel(const Context& context, const DecodeMegakernel& megakernel);

}  // namespace te::kernels
