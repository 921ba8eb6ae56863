// Context parallelism: the ranks of a group share the tokens of every sequence (parallel/sequence_split.h). All of a
// layer works on a token by itself but for attention, where tokens meet. There the ranks exchange, in one of two ways:
//
//   heads  each rank holds the query groups of 1/N of the heads for all tokens while attention runs (all-to-all before
//          and after it; Jacobs et al., arXiv 2309.14509). Where N divides the query groups of a tensor rank.
//   keys   each rank gets the keys and values of all tokens (all-gather) and attends with its own queries; the
//          gradients of keys and values go back summed (reduce-scatter). Keys and values of grouped queries are small.
#pragma once

#include "config/config.h"
#include "core/device.h"
#include "core/memory_plan.h"
#include "parallel/communicator.h"
#include "parallel/sequence_split.h"

namespace te::model {

enum class ContextExchange : uint8_t { none, heads, keys };

class ContextParallel {
 public:
  /// One rank with whole sequences.
  ContextParallel(const config::ModelConfig& model, int64_t micro_batch_size);
  /// tensor_ranks: that share the heads. The group must outlive it.
  ContextParallel(const config::ModelConfig& model, int64_t micro_batch_size, parallel::Communicator& group,
                  int tensor_ranks);

  int rank() const { return split_.rank(); }
  int size() const { return split_.ranks(); }
  parallel::Communicator& group() const { return *group_; }  ///< only where there are several ranks
  const parallel::SequenceSplit& split() const { return split_; }
  ContextExchange exchange() const { return exchange_; }

  void plan(MemoryPlan& plan);
  /// After the plan's allocation.
  void fill(const Context& context) const;
  /// int32 [tokens of a microbatch here]: each one's position in its sequence. Empty where sequences are whole: row r
  /// is at position r % seq.
  const Tensor& positions() const { return positions_; }

  // full [batch * seq, width]: the tokens of the ranks in the order of the sequences. by_rank [size() * tokens,
  // width]: as an all-gather or an all-to-all leaves them.
  void in_order(const Context& context, const Tensor& by_rank, const Tensor& full) const;
  void by_rank(const Context& context, const Tensor& full, const Tensor& by_rank) const;

 private:
  int64_t batch_;
  parallel::SequenceSplit split_;
  ContextExchange exchange_ = ContextExchange::none;
  parallel::Communicator* group_ = nullptr;
  Tensor positions_;
  Tensor order_;  ///< int32 [size() * tokens]: the row in the order of the sequences
};

}  // namespace te::model
