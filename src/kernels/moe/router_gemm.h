// GEMMs of a mixture of experts' router (and of the gate of a shared expert, a router of one expert), with x [T, H] and
// weight [E, H]:
//
//   router_gemm            logits [T, E] = x * weight^T
//   router_gemm_backward   dx += d_logits * weight, d_weight (+)= d_logits^T * x
//
// Multiplication and accumulation are FP32, as for all of the router (router.h). Unlike gemm(), no algorithm is
// selected: the bits depend on the operands only, logits of a token on that token only. On Hopper, BF16 operands use
// tensor cores: products of BF16 values are exact there, and d_logits are split into two BF16 parts (16 bits), as
// [T, 2 E] times the weight twice. The GPU sums d_weight over parts of the tokens before it adds these in order.
#pragma once

#include <cstdint>

#include "core/device.h"
#include "core/tensor.h"

namespace te::kernels {

struct RouterGemm {
  Tensor x;       ///< [T, H] fp32, bf16 or fp16
  Tensor weight;  ///< [E, H], dtype of x
  Tensor logits;  ///< out [T, E] fp32
};
void router_gemm(const Context& context, const RouterGemm& args);

struct RouterGemmBackward {
  Tensor d_logits;          ///< [T, E] fp32
  Tensor x, weight;         ///< of the forward pass
  Tensor dx;                ///< [T, H], dtype of x: added to
  Tensor d_weight;          ///< optional [E, H] fp32, bf16 or fp16
  bool accumulate = false;  ///< add to d_weight instead of overwriting it
  Tensor scratch;           ///< u8 [router_gemm_scratch(T, E, H)], aligned to 16 bytes
};
void router_gemm_backward(const Context& context, const RouterGemmBackward& args);

/// Bytes of RouterGemmBackward::scratch.
int64_t router_gemm_scratch(int64_t tokens, int64_t experts, int64_t hidden);

/// Number of parts of the tokens over which a GPU sums d_weight.
int64_t router_gemm_parts(int64_t tokens, int64_t experts, int64_t hidden);

}  // namespace te::kernels
