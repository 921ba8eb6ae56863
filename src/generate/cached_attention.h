// Attention of one layer in generation: each row is a token of a sequence whose earlier keys and values are in the KV
// cache (kernels/attention/decode.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "core/memory_plan.h"
#include "kernels/attention/decode.h"
#include "model/attention.h"

namespace te::generate {

/// The tokens of a pass; their positions are Pass::positions.
struct CachedRows {
  Tensor sequences;                     ///< int32 [rows]
  int64_t appended = 0;                 ///< rows that are added to the cache; the others are padding
  bool one_token_per_sequence = false;  ///< all rows are added, and all are of different sequences
};

class CachedAttention final : public model::CoreAttention {
 public:
  /// For one layer (`model`: ModelConfig::of_layer()). `rows`: of the current pass. `rows` and `rope` must outlive the
  /// object.
  CachedAttention(const config::ModelConfig& model, int tensor_ranks, const model::RopeTables& rope,
                  const CachedRows& rows);

  /// Plans memory for `tokens` tokens over all sequences.
  void plan(MemoryPlan& plan, const std::string& name, DType dtype, int64_t tokens);
  /// Divides the memory into `batch` sequences of up to `length` tokens.
  void resize_cache(int64_t batch, int64_t length);
  /// Copies the first `length` tokens of sequence `from` to sequence `to`.
  void copy_prefix(const Context& context, int64_t from, int64_t to, int64_t length) const;

  /// Adds the keys and values of the appended rows to the cache; o = attention to the cache. kept_qkv and lse are not
  /// used.
  void forward(const Context& context, const Tensor& qkv, const Tensor& kept_qkv, const Tensor& o,
               const Tensor& lse, const model::Pass& pass) const override;

 private:
  int64_t num_heads_, num_query_groups_, head_dim_, seq_, window_;
  float softmax_scale_;
  const model::RopeTables& rope_;
  const CachedRows& rows_;
  Planned<kernels::KeyValueCache> storage_;  ///< [tokens, groups, head_dim]
  kernels::KeyValueCache cache_;             ///< [batch, length, groups, head_dim], the start of storage_
};

}  // namespace te::generate
