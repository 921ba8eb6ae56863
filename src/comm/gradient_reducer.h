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
                  const parameters::ParameterStore& parameters, const parallel::Groups& groups);
  /// After the store's plan(). InternalError when the config ties parameters of two stages and none is
  /// marked.
  void plan(MemoryPlan& plan);

  /// The last microbatch's backward pass begins. Optional: without it finish() does everything.
  void begin(const Context& context);
  /// Elements [begin, end) of the flat buffers are final on this rank, by work launched on the context so
  /// far. In any order; the ranges do not overlap; alignment gaps may be left out. InternalError outside of
  /// begin() and finish(), and if a gradient is stale.
  void ready(const Context& context, int64_t begin, int64_t end);
  /// All gradients are final: reduces what has not been reduced yet. Work launched on the context from now on
  /// sees the sums. InternalError if a gradient is stale.
  void finish(const Context& context);
  bool in_flight() const { return in_flight_; }  ///< between begin() and finish()

 private:
  struct Run {
    int64_t begin = 0, end = 0;  ///< in the flat buffers, within one segment
  };
  std::vector<Run> runs_of(const parameters::Parameter& parameter) const;
  Tensor grads_of(const Run& run) const;
  void count_down(const parameters::Parameter& parameter, int64_t begin, int64_t end);
  void fence(const Context& context);
  void reduce_next(const Context& context);
  void sum_partial(const Context& context) const;

  const parameters::ParameterStore& parameters_;
  const parallel::Groups& groups_;
  bool ties_;  ///< this stage shares a parameter with another
  bool data_parallel_;
  bool overlap_;
  std::vector<Run> tied_, partial_;
  Tensor packed_;  ///< the runs of partial_, one after another; the dtype of the main gradients

  std::optional<Context> side_;  // the collectives' stream, with overlap
  std::optional<Event> event_;
  bool in_flight_ = false;
  std::vector<int64_t> missing_;  // per bucket: elements of parameters that are not ready
  size_t left_ = 0;               // buckets [0, left_) have not been reduced
};

}  // namespace te::comm
