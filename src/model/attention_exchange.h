// What context ranks exchange around attention (context_parallel.h). Scratch alone: nothing here is kept from the
// forward pass for the backward pass.
#pragma once

#include <string>
#include <vector>

#include "core/device.h"
#include "core/memory_plan.h"
#include "model/context_parallel.h"
#include "model/dimensions.h"

namespace te::model {

/// All heads of this rank's tokens for this rank's heads of all tokens, and back.
class HeadAllToAll {
 public:
  HeadAllToAll(const Dimensions& dims, const ContextParallel& ranks) : dims_(dims), ranks_(ranks) {}
  void plan(MemoryPlan& plan, const std::string& name);

  /// tokens [tokens, sum of blocks] is blocks of columns, each of which is cut among the ranks by heads (q, k and v of
  /// linear_qkv's output). heads [batch * seq, sum of blocks / ranks] has this rank's pieces of them, one after
  /// another.
  using Blocks = std::vector<int64_t>;
  void to_heads(const Context& context, const Tensor& tokens, const Blocks& blocks,
                const Tensor& heads) const;
  void to_tokens(const Context& context, const Tensor& heads, const Blocks& blocks,
                 const Tensor& tokens) const;

 private:
  void pieces(const Context& context, const Tensor& tokens, const Blocks& blocks, const Tensor& parts,
              bool join) const;
  Dimensions dims_;
  const ContextParallel& ranks_;
  Tensor sent_, received_;  ///< scratch [ranks, tokens, at most dims.qkv / ranks]
};

/// Keys and values of all tokens, and their gradients summed over the ranks.
class KeyValueAllGather {
 public:
  /// width: of keys and values, the last columns of linear_qkv's output.
  KeyValueAllGather(const Dimensions& dims, const ContextParallel& ranks, int64_t width)
      : dims_(dims), ranks_(ranks), width_(width) {}
  void plan(MemoryPlan& plan, const std::string& name);

  /// kv() from the ranks' qkv [tokens, dims.qkv].
  void gather(const Context& context, const Tensor& qkv) const;
  const Tensor& kv() const { return kv_; }  ///< [batch * seq, width]
  /// For the gradient of a range's keys; then its rows up to `keys` of each sample are added to what they sum up to.
  /// The first call begins the sum.
  const Tensor& dkv() const { return dkv_; }  ///< [batch * seq, width]
  void add(const Context& context, int64_t keys, bool first) const;
  /// The last columns of dqkv [tokens, dims.qkv]: the sums over the ranks for this rank's tokens.
  void scatter(const Context& context, const Tensor& dqkv) const;

 private:
  void own_columns(const Context& context, const Tensor& qkv, bool join) const;
  Dimensions dims_;
  const ContextParallel& ranks_;
  int64_t width_;
  Tensor own_;             ///< scratch [tokens, width]
  Tensor by_rank_;         ///< scratch [ranks * tokens, width]
  Tensor kv_, dkv_, sum_;  ///< scratch [batch * seq, width]
};

}  // namespace te::model
