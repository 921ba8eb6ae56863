// New values for all: after the update each data rank holds new values of its own segments; an all-gather per
// bucket, in place, brings it the others'. With overlap they run on a stream of their own while the next
// forward pass has begun, in the order in which that pass reads them.
//
// Buckets whose values are sharded (ParameterStore::shards_values) are gathered into their slots for each pass that
// reads them. With overlap a pass that comes to a bucket finds it there: it has been gathered while the pass before it
// ran, into the other slot, whose bucket has been left behind. A bucket that is still in its slot, as where a backward
// pass begins with the layers with which the forward pass has ended, is not gathered again.
// Buckets whose quantized weights travel as bytes (ParameterStore::gathers_bytes) need them first: before_gather() says
// who casts this rank's parts. The few values of these buckets that are not quantized go ahead, those of all buckets in
// one sum of what each rank has of them and zeros: of integers, so that bits are moved and nothing is added.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "config/config.h"
#include "core/device.h"
#include "parallel/groups.h"
#include "parameters/parameter_store.h"

namespace te::comm {

class ParameterGatherer {
 public:
  ParameterGatherer(const config::ParallelConfig& config, const parameters::ParameterStore& parameters,
                    const parallel::Groups& groups);

  /// Who makes the bytes of this rank's parts of quantized weights from new values, in order on the context.
  void before_gather(std::function<void(const Context&)> cast) { cast_ = std::move(cast); }
  /// Launches the gathers of all buckets behind the work launched on the context so far. All data ranks must
  /// call it, also when the step was skipped.
  void start(const Context& context);
  /// Work launched on the context from now on sees all values of elements [begin, end) of the flat buffers. A
  /// bucket that has been waited for is not waited for again: all waits must come from one context.
  /// Sharded ones are in their slots until others of the same slot are asked for. `direction`: which buckets are wanted
  /// next, 1 those behind in a forward pass, -1 those in front in a backward pass, 0 nobody knows. The same calls on
  /// all data ranks.
  void wait(const Context& context, int64_t begin, int64_t end, int direction = 0);
  /// All gathers that have been started have been waited for: values may be written.
  void wait_all(const Context& context);
  /// Values have changed under what has been gathered: slots hold nothing. Start() and gather_all() say so themselves.
  void invalidate() { held_.assign(held_.size(), nullptr); }
  /// In order on the context: after main parameters were initialized or loaded, and cast.
  void gather_all(const Context& context);

 private:
  void gather(const Context& context, size_t bucket);
  void all_gather(const Context& context, const Tensor& own, const Tensor& full) const;
  void cast(const Context& context) const;
  void gather_unquantized(const Context& context) const;
  void make_side(const Context& context);
  void fetch(const Context& context, size_t number);

  const parameters::ParameterStore& parameters_;
  const parallel::Groups& groups_;
  bool data_parallel_;
  bool overlap_;
  std::function<void(const Context&)> cast_;

  std::optional<Context> side_;  // the collectives' stream, with overlap
  std::optional<Event> started_;
  std::vector<Event> gathered_;                  // per bucket
  std::vector<char> pending_;                    // per bucket: gathered_ has not been waited for
  std::vector<const parameters::Bucket*> held_;  // per slot: which sharded bucket it holds
};

}  // namespace te::comm
