// Order of tokens for grouped GEMMs: each selection of an expert by a token is a row, the rows of an expert are
// contiguous and in the order of the tokens, and the row range of each expert starts and ends at a multiple of
// `alignment` (the tile of the grouped GEMM).
//
//   | expert 0: rows, padding | expert 1: rows, padding | ... | unused |
//   0 = offsets[0]            offsets[1]                      offsets[E]   max_expert_rows()
//
// Offsets are computed on the device and memory has a size for the worst case, so no selection is dropped and the host
// need not wait. Padding and unused rows are zero.
#pragma once

#include <cstdint>

#include "core/device.h"
#include "core/tensor.h"

namespace te::kernels {

/// Rows for any routing of `tokens` tokens to topk of `experts` experts.
/// `capacity`: tokens per expert at most (capacity.h); 0: no limit.
int64_t max_expert_rows(int64_t tokens, int64_t topk, int64_t experts, int64_t alignment,
                        int64_t capacity = 0);

struct ExpertRows {
  Tensor experts;  ///< i32 [T, topk], different experts per token or -1; on a GPU aligned to 16 bytes
  int64_t alignment = 1;
  int64_t capacity = 0;  ///< tokens per expert at most; 0: no limit
  Tensor offsets;        ///< out i32 [E + 1]: first row of each expert, and the end
  Tensor row_of;         ///< out i32 [T, topk]: row of each selection, -1 of expert -1
  Tensor source;  ///< out i32 [rows]: token * topk + slot of each row, or -1. rows >= max_expert_rows(...)
};
void expert_rows(const Context& context, const ExpertRows& args);

/// rows[r] = x[token of r], or zero. Also the backward pass of unpermute().
struct Permute {
  Tensor x;       ///< [T, cols] fp32, bf16 or fp16
  Tensor source;  ///< i32 [rows] of expert_rows()
  int64_t topk = 1;
  Tensor rows;  ///< out [rows, cols], dtype of x
};
void permute(const Context& context, const Permute& args);

/// y[t] = (gate) addend[t] + sum over slots with a row of rows[row_of[t, slot]], in FP32 in this order, rounded once.
/// Also the backward pass of permute(). Probabilities are not applied here but to the input of the second GEMM
/// (expert_activation.h).
struct Unpermute {
  Tensor rows;    ///< [rows, cols] fp32, bf16 or fp16
  Tensor row_of;  ///< i32 [T, topk]
  Tensor addend;  ///< optional [T, cols], dtype of rows; may be y
  Tensor
      gate;  ///< optional fp32 [T] with addend: it is multiplied by sigmoid(gate[t]) (Qwen2-MoE's shared expert)
  Tensor y;  ///< out [T, cols], dtype of rows
};
void unpermute(const Context& context, const Unpermute& args);

/// Backward pass of the gated addend of unpermute().
struct ExpertGateBackward {
  Tensor addend, gate;  ///< of the forward pass
  Tensor dy;            ///< [T, cols]
  Tensor d_addend;      ///< out [T, cols]; may be addend
  Tensor d_gate;        ///< out fp32 [T]
};
void expert_gate_backward(const Context& context, const ExpertGateBackward& args);

}  // namespace te::kernels
