// Context parallelism: the ranks of a group partition the tokens of every sequence (parallel/sequence_split.h). All
// parts of a layer process tokens independently, except attention, where the ranks communicate in one of two ways:
//
//   heads  during attention, each rank has 1/N of the query groups for all tokens (all-to-all before and after
//          attention; Jacobs et al., arXiv 2309.14509). Used if N divides the query groups of a tensor-parallel rank.
//   keys   each rank gathers the keys and values of all tokens (all-gather) and attends with the queries of its tokens;
//          the gradients of keys and values are reduced (reduce-scatter). Used otherwise: with few query groups, keys
//          and values are small.
#pragma once

#include <algorithm>

#include "config/config.h"
#include "core/device.h"
#include "core/memory_plan.h"
#include "parallel/communicator.h"
#include "parallel/sequence_split.h"

namespace te::model {

enum class ContextExchange : uint8_t { none, heads, keys };

class ContextParallel {
 public:
  /// One rank with full sequences.
  ContextParallel(const config::ModelConfig& model, int64_t micro_batch_size);
  /// `tensor_ranks`: number of ranks that partition the heads. The group must outlive the object.
  ContextParallel(const config::ModelConfig& model, int64_t micro_batch_size, parallel::Communicator& group,
                  int tensor_ranks);

  int rank() const { return split_.rank(); }
  int size() const { return split_.ranks(); }
  parallel::Communicator& group() const { return *group_; }  ///< only with several ranks
  const parallel::SequenceSplit& split() const { return split_; }
  /// Divides rows [token, token + count) of a microbatch on this rank into ranges that are contiguous in the full
  /// microbatch and calls work(first row of the range on this rank, first row in the full microbatch, number of rows).
  template <class Work>
  void for_whole_ranges(int64_t token, int64_t count, Work&& work) const {
    if (split_.ranks() == 1) return work(token, token, count);
    for (const int64_t end = token + count; token < end;) {
      const int64_t sample = token / split_.local(), local = token % split_.local();
      const parallel::TokenRange& range = split_.range_at(local);
      const int64_t within = local - range.local, rows = std::min(range.count - within, end - token);
      work(token, sample * split_.seq() + range.begin + within, rows);
      token += rows;
    }
  }
  ContextExchange exchange() const { return exchange_; }

  void plan(MemoryPlan& plan);
  /// After the plan's allocation.
  void fill(const Context& context) const;
  /// int32 [tokens of a microbatch on this rank]: each token's position in its sequence. Empty with one rank, where row
  /// r has position r % seq.
  const Tensor& positions() const { return positions_; }

  // Reorder between full [batch * seq, width], the tokens in sequence order, and by_rank [size() * tokens, width], the
  // order after an all-gather or an all-to-all.
  void in_order(const Context& context, const Tensor& by_rank, const Tensor& full) const;
  void by_rank(const Context& context, const Tensor& full, const Tensor& by_rank) const;

 private:
  int64_t batch_;
  parallel::SequenceSplit split_;
  ContextExchange exchange_ = ContextExchange::none;
  parallel::Communicator* group_ = nullptr;
  PlannedTensor positions_;
  PlannedTensor order_;  ///< int32 [size() * tokens]: the row in sequence order
};

}  // namespace te::model
