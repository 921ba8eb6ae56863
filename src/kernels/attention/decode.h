// Attention against a key/value cache, for generation. Every row is a token of some sequence. A pass may hold one token
// each of many sequences, a part of one prompt, or both. Per layer:
//   1. cache_append writes the rows' keys and values to their positions in the cache,
//   2. attention_decode lets each row's query see the cache of its sequence up to its own position.
// With one row for every position of a sequence, this equals the causal attention of attention.h; any length runs
// without a plan or compilation of its own.
//
// Scores, softmax and sums are FP32; o is rounded once. Both backends are deterministic, and a row's result does not
// depend on the other rows. On a GPU head_dim is at most 256.
#pragma once

#include <cstdint>

#include "core/device.h"
#include "core/tensor.h"

namespace te::kernels {

/// Cache of one layer: [batch, max_length, query groups, head_dim] each, fp32, bf16 or fp16.
struct KeyValueCache {
  Tensor k, v;
};

struct CacheAppend {
  Tensor qkv;           ///< [rows, (heads + 2 groups) * head_dim], q | k | v, k rotated; dtype of the cache
  Tensor sequences;     ///< int32 [rows], below batch
  Tensor positions;     ///< int32 [rows], below max_length; no two rows have the same sequence and position
  KeyValueCache cache;  ///< output: only the positions of the rows are written
};
void cache_append(const Context& context, const CacheAppend& args);

struct AttentionDecode {
  Tensor qkv;           ///< [rows, (heads + 2 groups) * head_dim]; q is read
  Tensor sequences;     ///< int32 [rows]
  Tensor positions;     ///< int32 [rows]: row r sees keys 0 to positions[r], which must have been written
  KeyValueCache cache;  ///< head h reads group h / (heads / groups)
  float softmax_scale = 0.0f;
  Tensor o;            ///< output [rows, heads * head_dim]
  int64_t window = 0;  ///< row r sees the last `window` of its keys; 0: all of them
};
void attention_decode(const Context& context, const AttentionDecode& args);

/// rope, cache_append() and attention_decode() for one token of each of several different sequences, with bitwise equal
/// results. On a GPU this is one launch for a head_dim of 32, 64, 128 or 256.
struct AttentionStep {
  AttentionDecode decode;  ///< qkv: q and k not yet rotated; contents unspecified afterwards
  Tensor cos, sin;         ///< as in kernels/rope/rope.h; empty: no rotation
};
void attention_step(const Context& context, const AttentionStep& args);

/// The reason why a cache of these sizes is not supported, or "".
const char* decode_unsupported(DeviceKind device, int64_t head_dim);

}  // namespace te::kernels
