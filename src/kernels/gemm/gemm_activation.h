// A linear layer's GEMM together with the activation on one side of it: linear_fc1 with what follows it, and
// linear_fc2's dgrad with the activation's gradient. On Hopper one kernel does both in BF16
// (gemm_activation_hopper.cu), and forward in FP8 with one scale an operand, where it also casts what it makes
// (gemm_activation_fp8.cu), so that the values between the two are not read again; elsewhere, and for sizes that these
// kernels are not made for, gemm and the activation's own op run one after the other; so do the kinds other than GELU
// (tanh) and SwiGLU without a clamp. Forward with a few rows of BF16, what generation runs, all kinds are one kernel
// (gemm_few_rows.cu).
//
//   forward   out[m, n] = a b^T + bias,            y[m, ffn] = activation(out)
//   backward  dx[m, n]  = activation'(x) (a b),    dbias[n] += column sums of dx,    y[m, ffn] = activation(x)
//
// n is ffn with GELU and 2 ffn with SwiGLU, where out, x and dx are gate | up (activation.h).
//
// y is that of `out` as it is stored: bit for bit what activation_forward makes of it on the same backend, so y can be
// made again from out, as the backward pass does on request (recomputation). In the backward pass the FP32 GEMM
// meets the slope as it is where the two are fused, and else rounded to the tensors' dtype; dx is rounded once more.
//
// Deterministic as gemm is: which path is taken depends on the shapes, dtypes, alignments and the device alone. The
// sums of dbias have a fixed order on each path.
#pragma once

#include "core/device.h"
#include "core/tensor.h"
#include "kernels/activation/activation.h"
#include "kernels/gemm/matrix.h"

namespace te::kernels {

/// All tensors have one dtype, fp32, bf16 or fp16, but for a and b in FP8: then the others are fp32 or bf16. What is
/// written overlaps nothing else.
struct GemmActivationForward {
  ActivationKind kind = ActivationKind::swiglu;
  Matrix a;                        ///< [m, k]
  Matrix b;                        ///< [n, k]
  Tensor bias;                     ///< optional [n]
  Tensor out;                      ///< out [m, n]
  Tensor y;                        ///< out [m, ffn]; may be empty when y_fp8 wants data
  Fp8Output y_fp8;                 ///< optional, beside FP8 operands
  float clamp = 0;                 ///< as in activation.h
  bool fast_accumulation = false;  ///< as in gemm.h
  bool early_b = false;            ///< likewise
};
void gemm_activation_forward(const Context& context, const GemmActivationForward& args);

/// All but dbias and scratch have one dtype, fp32, bf16 or fp16. What is written overlaps nothing else: dx is not x.
struct GemmActivationBackward {
  ActivationKind kind = ActivationKind::swiglu;
  Tensor a;   ///< [m, k], dy of the linear behind the activation
  Tensor b;   ///< [k, ffn], its weight
  Tensor x;   ///< [m, n], what the forward pass wrote to `out`
  Tensor dx;  ///< out [m, n]
  Tensor
      dbias;  ///< optional fp32 or bf16 (rounded once a call) [n]: += column sums of dx (after rounding; FP32 sums)
  Tensor scratch;   ///< fp32, quantize_scratch_elements(m, n) when dbias is given
  Tensor d_y;       ///< [m, ffn], scratch: the GEMM's result, where it has to be stored
  Tensor y;         ///< optional out [m, ffn]: the activation's result, made again from x
  float clamp = 0;  ///< as in activation.h
};
void gemm_activation_backward(const Context& context, const GemmActivationBackward& args);

}  // namespace te::kernels
