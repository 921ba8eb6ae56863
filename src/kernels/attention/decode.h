// Attention against a cache of keys and values: what generation runs. Every row is a token of some sequence; a pass
// may hold one token each of many sequences, a part of one prompt, or both. Per layer
//   1. cache_append writes the rows' keys and values at their places,
//   2. attention_decode lets each row's query see the cache of its sequence up to its own position.
// With one row per position of a sequence this is the causal attention of attention.h, and any length runs without a
// plan or a compilation of its own.
//
// Scores, softmax and sums are FP32; o is rounded once. Deterministic on both backends; a row's bits depend on no other
// row. On a GPU head_dim is at most 256.
#pragma once

#include <cstdint>

#include "core/device.h"
#include "core/tensor.h"

namespace te::kernels {

/// Of one layer: [batch, max_length, query groups, head_dim] each, fp32, bf16 or fp16.
struct KeyValueCache {
  Tensor k, v;
};

struct CacheAppend {
  Tensor qkv;           ///< [rows, (heads + 2 groups) * head_dim], q | k | v, k rotated; dtype of the cache
  Tensor sequences;     ///< int32 [rows], below batch
  Tensor positions;     ///< int32 [rows], below max_length; no two rows have the same place
  KeyValueCache cache;  ///< out: the rows' places; nothing else is written
};
void cache_append(const Context& context, const CacheAppend& args);

struct AttentionDecode {
  Tensor qkv;           ///< [rows, (heads + 2 groups) * head_dim]; q is read
  Tensor sequences;     ///< int32 [rows]
  Tensor positions;     ///< int32 [rows]: row r sees keys 0 to positions[r], which must have been written
  KeyValueCache cache;  ///< head h reads group h / (heads / groups)
  float softmax_scale = 0.0f;
  Tensor o;            ///< out [rows, heads * head_dim]
  int64_t window = 0;  ///< row r sees the last so many of its keys; 0: all
};
void attention_decode(const Context& context, const AttentionDecode& args);

/// One token of each of several sequences, none twice: the rotary embedding by positions, cache_append() and
/// attention_decode(), bit for bit. On a GPU one launch where heads are 32, 64, 128 or 256 wide.
struct AttentionStep {
  AttentionDecode decode;  ///< qkv: q and k not yet rotated; unspecified afterwards
  Tensor cos, sin;         ///< as in kernels/rope/rope.h; empty: nothing is rotated
};
void attention_step(const Context& context, const AttentionStep& args);

/// Why a cache of these sizes cannot be used, or "".
const char* decode_unsupported(DeviceKind device, int64_t head_dim);

}  // namespace te::kernels
