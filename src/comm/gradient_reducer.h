// Sums of gradients over the ranks: after finish(), this rank's segment of every bucket of main gradients
// holds the sum over all ranks that have a share in it. What lies outside of the rank's segments is of no use
// any more.
//
//   1. over the data group     a reduce-scatter per bucket, in place, launched while the backward pass runs
//   2. over the two stages that hold a tied parameter, on the segments' parts of it
//   3. over the tensor group   parameters of which each rank finds its own tokens' part (Sharing::partial)
//
// The ranks of a group must issue the same collectives in the same order. So buckets go in one fixed order,
// the last one first, as the backward pass finishes them; one that is ready before its turn waits for those
// before it.
//
// Buckets whose gradients are sharded (ParameterStore::shards_grads) are reduced after every microbatch, as its
// backward pass finishes them, and added to the segment. All data ranks run the same passes, so these come in the same
// order on all of them. An element's order of sums: over the data ranks first, then over the microbatches, each in
// their order; of whole buckets, and of vectors, over the microbatches first.
#pragma once

#include <optional>
#include <vector>

#include "config/config.h"
#include "core/device.h"
#include "core/memory_plan.h"
#include "parallel/groups.h"
#include "parameters/parameter_store.h"

namespace te::comm {

class GradientReducer {
 public:
  /// tied_embeddings: model.tie_word_embeddings.
  GradientReducer(const config::ParallelConfig& config, bool tied_embeddings,
                  parameters::ParameterStore& parameters, const parallel::Groups& groups);
  /// After the store's plan(). InternalError when the config ties parameters of two stages and none is
  /// marked.
  void plan(MemoryPlan& plan);

  /// The last microbatch's backward pass begins; with sharded buckets the first one's. Optional without these: finish()
  /// does everything.
  void begin(const Context& context);
  /// GEMMs launched on the context from now on write this microbatch's gradients of elements [begin, end): sharded
  /// ones into a slot, which an earlier reduction may have to leave first. Before each backward pass of a layer, also
  /// outside of begin() and finish(), where the gradients are of no use.
  void open(const Context& context, int64_t begin, int64_t end);
  /// Elements [begin, end) of the flat buffers are final on this rank, by work launched on the context so
  /// far: for the step if this is its last microbatch, else for the microbatch, which sharded buckets alone look at.
  /// In any order; the ranges of a microbatch do not overlap; alignment gaps may be left out. InternalError outside of
  /// begin() and finish(), and if a gradient is stale.
  void ready(const Context& context, int64_t begin, int64_t end, bool last = true);
  /// All gradients are final: reduces what has not been reduced yet. Work launched on the context from now on
  /// sees the sums. InternalError if a gradient is stale.
  void finish(const Context& context);
  bool in_flight() const { return in_flight_; }  ///< between begin() and finish()

 private:
  struct FlatRange {
    int64_t begin = 0, end = 0;  ///< in the flat buffers, within one segment
  };
  std::vector<FlatRange> ranges_of(const parameters::Parameter& parameter) const;
  Tensor grads_of(const FlatRange& range) const;
  void count_down(const parameters::Parameter& parameter, int64_t begin, int64_t end);
  void fence(const Context& context);
  bool has_unsharded_left();
  void reduce_next(const Context& context);
  void plan_sharded();
  size_t slot_of(const parameters::Bucket& bucket) const;
  void reduce_scatter(const Context& context, const Tensor& full, const Tensor& shard, bool adds) const;
  void reduce_sharded(const Context& context, size_t number, bool last);
  void sum_partial(const Context& context) const;

  /// What a sharded bucket has besides its linears' gradients.
  struct Sharded {
    std::vector<parameters::Bucket> gaps;               ///< ranges of its slot: all but the linears
    std::vector<const parameters::Parameter*> vectors;  ///< in the gaps
    int64_t linears = 0;                                ///< elements
    bool started = false;                               ///< the segment holds a sum of this step
    bool finished = false;                              ///< and the last microbatch is in it
  };

  parameters::ParameterStore& parameters_;
  const parallel::Groups& groups_;
  bool has_tied_parameter_;  ///< this stage shares a parameter with another
  bool data_parallel_;
  bool overlap_;
  std::vector<FlatRange> tied_, partial_;
  Tensor copied_;  ///< where copies bring the other ranks' addends; the dtype of the main gradients
  Tensor packed_;  ///< the ranges of partial_, one after another; the dtype of the main gradients

  std::optional<Context> side_;  // the collectives' stream, with overlap
  std::optional<Event> event_;
  bool in_flight_ = false;
  std::vector<int64_t> missing_;  // per bucket: elements that are not ready; of sharded ones those of linears
  size_t left_ = 0;               // the whole ones of buckets [0, left_) have not been reduced
  std::vector<Sharded> sharded_;  // by Bucket::sharded
  std::vector<Event> slot_is_free_;  // per slot: behind its last reduction
};

}  // namespace te::comm
