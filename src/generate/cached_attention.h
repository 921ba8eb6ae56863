// Attention of one layer in generation: rows are tokens of sequences whose earlier keys and values are in a cache
// (kernels/attention/decode.h).
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
  int64_t appended = 0;                 ///< rows that enter the cache; the others repeat one of them
  bool one_token_per_sequence = false;  ///< all rows enter it, and no two are of one sequence
};

class CachedAttention final : public model::CoreAttention {
 public:
  /// Of one layer (`model`: ModelConfig::of_layer()). `rows` are those of the pass that runs; they and the tables
  /// outlive this.
  CachedAttention(const config::ModelConfig& model, int tensor_ranks, const model::RopeTables& rope,
                  const CachedRows& rows);

  /// Memory for `tokens` tokens of all sequences together.
  void plan(MemoryPlan& plan, const std::string& name, DType dtype, int64_t tokens);
  /// Cuts it anew: `batch` sequences of up to `length` tokens.
  void resize_cache(int64_t batch, int64_t length);
  /// Gives a sequence the first `length` tokens of another one.
  void copy_prefix(const Context& context, int64_t from, int64_t to, int64_t length) const;

  /// The appended rows' keys and values enter the cache; o = attention against it. kept_qkv and lse are not looked at.
  void forward(const Context& context, const Tensor& qkv, const Tensor& kept_qkv, const Tensor& o,
               const Tensor& lse, const model::Pass& pass) const override;

 private:
  int64_t num_heads_, num_query_groups_, head_dim_, seq_, window_;
  float softmax_scale_;
  const model::RopeTables& rope_;
  const CachedRows& rows_;
  kernels::KeyValueCache storage_;  ///< [tokens, groups, head_dim]
  kernels::KeyValueCache cache_;    ///< [batch, length, groups, head_dim], its beginning
};

}  // namespace te::generate
