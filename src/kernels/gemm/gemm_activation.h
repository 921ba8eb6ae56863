// A linear layer's GEMM fused with an adjacent activation: linear_fc1 with the activation after it, and linear_fc2's
// dgrad with the activation's gradient. On Hopper one kernel computes both in BF16 (gemm_activation_hopper.cu), and the
// forward pass in FP8 with one scale per operand, where it also quantizes its result (gemm_activation_fp8.cu), so that
// the intermediate result is not read again. For other devices, unsupported sizes and activations other than GELU
// (tanh) and SwiGLU without a clamp, gemm and the activation's op run one after another. The forward pass with a few
// BF16 rows, as in generation, is one kernel for all activations (gemm_few_rows.cu).
//
//   forward   out[m, n] = a b^T + bias,            y[m, ffn] = activation(out)
//   backward  dx[m, n]  = activation'(x) (a b),    dbias[n] += column sums of dx,    y[m, ffn] = activation(x)
//
// n is ffn with GELU and 2 ffn with SwiGLU, where out, x and dx are gate | up (activation.h).
//
// y is computed from `out` as stored and bitwise equal to the result of activation_forward on the same backend, so y
// can be recomputed from out, as the backward pass does on request. In the backward pass, the FP32 result of the GEMM
// is multiplied by the activation's slope without rounding if both are fused, and otherwise after rounding to the
// tensors' dtype; dx is then rounded.
//
// Deterministic like gemm: the path depends only on the shapes, dtypes, alignments and the device, and the sums of
// dbias have a fixed order on each path.
#pragma once

#include "core/device.h"
#include "core/tensor.h"
#include "kernels/activation/activation.h"
#include "kernels/gemm/gemm.h"

namespace te::kernels {

/// All tensors have one dtype (fp32, bf16 or fp16), except that with FP8 a and b the others are fp32 or bf16. Outputs
/// must not overlap any other tensor.
struct GemmActivationForward {
  ActivationKind kind = ActivationKind::swiglu;
  Matrix a;                        ///< [m, k]
  Matrix b;                        ///< [n, k]
  Tensor bias;                     ///< optional [n]
  Tensor out;                      ///< output [m, n]
  Tensor y;                        ///< output [m, ffn]; may be empty when y_fp8 wants data
  Fp8Output y_fp8;                 ///< optional, with FP8 operands
  float clamp = 0;                 ///< as in activation.h
  bool fast_accumulation = false;  ///< as in gemm.h
  bool early_b = false;            ///< as in gemm.h
};
void gemm_activation_forward(const Context& context, const GemmActivationForward& args);

/// All tensors except dbias and scratch have one dtype: fp32, bf16 or fp16. Outputs must not overlap any other tensor,
/// so dx must not be x.
struct GemmActivationBackward {
  ActivationKind kind = ActivationKind::swiglu;
  Tensor a;   ///< [m, k], dy of the linear after the activation
  Tensor b;   ///< [k, ffn], weight of that linear
  Tensor x;   ///< [m, n], what the forward pass wrote to `out`
  Tensor dx;  ///< output [m, n]
  /// Optional fp32 or bf16 (rounded once per call) [n]: the column sums of dx (after its rounding) are added in FP32.
  Tensor dbias;
  Tensor scratch;   ///< fp32, quantize_scratch_elements(m, n) when dbias is given
  Tensor d_y;       ///< [m, ffn], scratch for the GEMM's result if it has to be stored
  Tensor y;         ///< optional output [m, ffn]: the activation's result, recomputed from x
  float clamp = 0;  ///< as in activation.h
};
void gemm_activation_backward(const Context& context, const GemmActivationBackward& args);

/// The kernels of the GEMM; the activation is a separate launch unless they are te-train's.
GemmKernels gemm_kernels(const Context& context, const GemmActivationForward& args);
GemmKernels gemm_kernels(const Context& context, const GemmActivationBackward& args);

}  // namespace te::kernels
