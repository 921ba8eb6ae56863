// Reads what this rank trains on of each global batch, and keeps the ranks together when a dataset fails in the middle
// of a run: what cannot be read is noted here, and ends the run on all of them, behind a checkpoint.
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

  /// This rank's samples of the global batch that begins with `first_sample`, on all ranks at once. `batch.counted`
  /// becomes that of the whole global batch.
  void read(int64_t first_sample, HostBatch& batch);
  /// UserError on all ranks where one of them has noted something.
  void throw_pending_data_error();

  /// What this rank has to say of its data; empty mostly.
  std::string& bad_data() { return bad_data_; }

 private:
  const Batches& batches_;
  const StepRunner& runner_;
  parallel::World& world_;
  std::string bad_data_;
};

}  // namespace te::train
