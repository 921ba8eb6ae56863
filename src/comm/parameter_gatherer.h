// Gathers parameters: after the update each rank of a gradient group has new values of its own segments, and an
// in-place all-gather per bucket distributes them. With overlap the all-gathers run on a separate CUDA stream during
// the next forward pass, in the order in which the pass reads the buckets.
//
// Buckets with sharded values (ParameterStore::shards_values) are gathered into slots for each pass that reads them.
// With overlap the bucket of the next layers is gathered, into another slot, while the current layers run. A bucket
// that is still in its slot is not gathered again, such as at the beginning of a backward pass.
//
// For buckets whose quantized weights are gathered as bytes (ParameterStore::gathers_bytes), the function of
// before_gather() quantizes this rank's parts first. The few unquantized values of these buckets are gathered before
// them, for all buckets in one integer all-reduce (sum) in which all other ranks contribute zeros, so bits are
// preserved.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "core/device.h"
#include "parallel/groups.h"
#include "parameters/parameter_store.h"

namespace te::comm {

class ParameterGatherer {
 public:
  ParameterGatherer(const parameters::ParameterStore& parameters, const parallel::Groups& groups);

  /// Sets the function that quantizes this rank's parts of the weights from new values, in order on the context.
  void before_gather(std::function<void(const Context&)> cast) { cast_ = std::move(cast); }
  /// Launches the gathers of all buckets that are trained, after the work launched on the context so far. All
  /// data-parallel ranks must call it, also if the step was skipped.
  void start(const Context& context);
  /// Makes later work on the context see all values of elements [begin, end) of the flat buffers. All waits must use
  /// the same context, because a bucket is waited for only once. A sharded bucket stays in its slot until a wait for
  /// another bucket of the same slot. `direction` is for prefetching: 1 if the next bucket is needed next (forward
  /// pass), -1 for the previous one (backward pass), 0 if unknown. All data-parallel ranks must make the same calls.
  void wait(const Context& context, int64_t begin, int64_t end, int direction = 0);
  /// Waits for all gathers that have been started, so that values may be written.
  void wait_all(const Context& context);
  /// Marks the contents of all slots as outdated, after a change of values. start() and gather_all() do this, too.
  void invalidate() { held_.clear(); }
  /// Gathers all buckets without overlap, in order on the context: after master weights were initialized or loaded, and
  /// converted to BF16.
  void gather_all(const Context& context);

 private:
  bool divided() const { return parameters_.layout().divides(); }
  bool overlaps() const { return divided() && parameters_.layout().data_parallel.overlap_param_gather; }
  void gather(const Context& context, size_t bucket);
  void gather_buckets(const Context& context, bool also_untrained);
  void all_gather(const Context& context, GradientGroup group, const Tensor& own, const Tensor& full) const;
  void cast(const Context& context) const;
  void gather_unquantized(const Context& context) const;
  void make_side(const Context& context);
  void fetch(const Context& context, size_t number);

  const parameters::ParameterStore& parameters_;
  const parallel::Groups& groups_;
  std::function<void(const Context&)> cast_;

  std::optional<Context> side_;  // CUDA stream of the collectives, with overlap
  std::optional<Event> started_;
  std::vector<Event> gathered_;  // per bucket
  std::vector<char> pending_;    // per bucket: gathered_ has not been waited for
  /// Per region and slot: the sharded bucket in it.
  std::map<std::pair<int, int>, const parameters::Bucket*> held_;
};

}  // namespace te::comm
