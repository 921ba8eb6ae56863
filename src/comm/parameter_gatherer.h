// New values for all: after the update each data rank holds new values of its own segments; an all-gather per
// bucket, in place, brings it the others'. With overlap they run on a stream of their own while the next
// forward pass has begun, in the order in which that pass reads them.
#pragma once

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

  /// Launches the gathers of all buckets behind the work launched on the context so far. All data ranks must
  /// call it, also when the step was skipped.
  void start(const Context& context);
  /// Work launched on the context from now on sees all values of elements [begin, end) of the flat buffers. A
  /// bucket that has been waited for is not waited for again: all waits must come from one context.
  void wait(const Context& context, int64_t begin, int64_t end);
  void wait_all(const Context& context) { wait(context, 0, parameters_.flat_size()); }
  /// In order on the context: after main parameters were initialized or loaded, and cast.
  void gather_all(const Context& context);

 private:
  void gather(const Context& context, size_t bucket);

  const parameters::ParameterStore& parameters_;
  const parallel::Groups& groups_;
  bool data_parallel_;
  bool overlap_;

  std::optional<Context> side_;  // the collectives' stream, with overlap
  std::optional<Event> started_;
  std::vector<Event> gathered_;  // per bucket
  std::vector<char> pending_;    // per bucket: gathered_ has not been waited for
};

}  // namespace te::comm
