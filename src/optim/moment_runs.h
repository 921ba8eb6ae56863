// Maps a rank's Adam moments to parameters, for their stochastic rounding (kernels/adamw/moment_rounding.h).
#pragma once

#include <vector>

#include "core/tensor.h"
#include "kernels/adamw/moment_rounding.h"
#include "parameters/parameter_store.h"

namespace te::optim {

/// Runs of one segment; `begin` counts from the segment's first element.
struct MomentRuns {
  std::vector<kernels::MomentRun> runs;
  Tensor device;  ///< u8, copy of `runs` on the device

  int64_t bytes() const { return static_cast<int64_t>(runs.size() * sizeof(kernels::MomentRun)); }
  /// Runs of elements [first, first + count), counted from `first`; the first run may begin earlier.
  MomentRuns part(int64_t first, int64_t count) const;
};

/// The runs of every segment of a planned store.
std::vector<MomentRuns> moment_runs(const parameters::ParameterStore& parameters);
int64_t bytes_of(const std::vector<MomentRuns>& segments);

}  // namespace te::optim
