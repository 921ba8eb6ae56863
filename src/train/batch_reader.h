// Reads this rank's samples of each global batch. A read error during a run is stored here; the run then saves a
// checkpoint and ends on all ranks.
#pragma once

#include <cstdint>
#include <string>

#include "parallel/world.h"
#include "train/batches.h"
#include "train/step_runner.h"

namespace te::train {

class BatchReader {
 public:
  BatchReader(const Batches& batches, const StepRunner& runner, parallel::World& world)
      : batches_(batches), runner_(runner), world_(world) {}

  /// Reads this rank's samples of the global batch that starts at `first_sample`; collective. Sets `batch.counted` to
  /// the count of the whole global batch. A read error is stored, not thrown.
  void read(int64_t first_sample, HostBatch& batch);
  /// Throws UserError on all ranks if any rank has stored a read error. Collective.
  void throw_pending_data_error();

  /// The stored read error of this rank; empty if there is none.
  std::string& bad_data() { return bad_data_; }

 private:
  const Batches& batches_;
  const StepRunner& runner_;
  parallel::World& world_;
  std::string bad_data_;
};

}  // namespace te::train
