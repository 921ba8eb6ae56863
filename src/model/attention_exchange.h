// The communication of context-parallel attention (context_parallel.h). Uses scratch only: nothing is saved from the
// forward pass for the backward pass.
#pragma once

#include <string>
#include <vector>

#include "core/device.h"
#include "core/memory_plan.h"
#include "model/context_parallel.h"
#include "model/dimensions.h"

namespace te::model {

/// All-to-all between all heads of this rank's tokens and this rank's heads of all tokens.
class HeadAllToAll {
 public:
  HeadAllToAll(const Dimensions& dims, const ContextParallel& ranks) : dims_(dims), ranks_(ranks) {}
  void plan(MemoryPlan& plan, const std::string& name);

  /// tokens [tokens, sum of blocks] consists of blocks of columns (q, k and v of linear_qkv's output), each of which is
  /// partitioned among the ranks by heads. heads [batch * seq, sum of blocks / ranks] has this rank's part of each
  /// block.
  using Blocks = std::vector<int64_t>;
  void to_heads(const Context& context, const Tensor& tokens, const Blocks& blocks,
                const Tensor& heads) const;
  void to_tokens(const Context& context, const Tensor& heads, const Blocks& blocks,
                 const Tensor& tokens) const;

 private:
  void chunks(const Context& context, const Tensor& tokens, const Blocks& blocks, const Tensor& parts,
              bool join) const;
  enum class Buffer : uint8_t { sent, received };
  Dimensions dims_;
  const ContextParallel& ranks_;
  PlannedTensor sent_, received_;  ///< scratch [ranks, tokens, at most dims.qkv / ranks]
};

/// All-gather of keys and values of all tokens, and reduce-scatter of their gradients.
class KeyValueAllGather {
 public:
  /// `width`: width of keys and values, which are the last columns of linear_qkv's output.
  KeyValueAllGather(const Dimensions& dims, const ContextParallel& ranks, int64_t width)
      : dims_(dims), ranks_(ranks), width_(width) {}
  void plan(MemoryPlan& plan, const std::string& name);

  /// Gathers kv() from the ranks' qkv [tokens, dims.qkv].
  void gather(const Context& context, const Tensor& qkv) const;
  const Tensor& kv() const { return kv_; }  ///< [batch * seq, width]
  /// Buffer for the gradient of the keys and values of one range of queries. add() then adds the first `keys` rows of
  /// each sample to the sum over ranges; `first` starts the sum.
  const Tensor& dkv() const { return dkv_; }  ///< [batch * seq, width]
  void add(const Context& context, int64_t keys, bool first) const;
  /// Reduce-scatters the sum to the last columns of dqkv [tokens, dims.qkv], for this rank's tokens.
  void scatter(const Context& context, const Tensor& dqkv) const;

 private:
  void own_columns(const Context& context, const Tensor& qkv, bool join) const;
  enum class Buffer : uint8_t { own, by_rank, kv, dkv, sum };
  Dimensions dims_;
  const ContextParallel& ranks_;
  int64_t width_;
  PlannedTensor own_;             ///< scratch [tokens, width]
  PlannedTensor by_rank_;         ///< scratch [ranks * tokens, width]
  PlannedTensor kv_, dkv_, sum_;  ///< scratch [batch * seq, width]
};

}  // namespace te::model
