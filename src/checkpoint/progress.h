// Where a run stands between two optimizer steps: the one list of what decides later steps, apart from tensors and
// config. Policies of the training loop (src/train) keep no state of their own; each works on its member here, so that
// a resumed run decides as one that was not interrupted. The manifest stores all of it (progress_json.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace te::checkpoint {

/// What the evaluations of a run have found so far, for the best checkpoints and for early stopping.
struct Validation {
  struct Best {
    int64_t step = 0;
    double loss = 0;
    bool extra = false;  ///< saved for this alone
    bool operator==(const Best&) const = default;
  };
  std::string set;               ///< the validation set of the losses; empty before the first evaluation
  std::optional<double> lowest;  ///< loss that was the last gain; empty before there was one
  int64_t without_gain = 0;      ///< evaluations since then
  std::vector<Best> best;        ///< checkpoints, the lowest loss first
  bool operator==(const Validation&) const = default;
};

/// What the guard of an FP8 run knows (train/guard.h).
struct Guard {
  std::vector<double> gaps;       ///< of earlier comparisons, the newest last
  int64_t began = -1;             ///< steps that were taken when the comparison in work began; -1: none
  std::vector<double> bf16, fp8;  ///< losses of its steps, the second as far as they are taken
  std::optional<double> bf16_valid;
  int64_t bf16_until = 0;  ///< steps up to this one are taken in BF16
  int64_t excesses = 0;
  bool operator==(const Guard&) const = default;
};

/// The dynamic loss scale of an FP16 run (train/loss_scaler.h).
struct LossScale {
  double scale = 0;        ///< of the next step; 0: the run has none
  int64_t good_steps = 0;  ///< with finite gradients since the scale has changed
  int64_t hysteresis = 0;  ///< steps without finite gradients that are left before the scale falls
  bool operator==(const LossScale&) const = default;
};

/// The losses that decide what a loss spike is (train/loss_spikes.h).
struct SpikeHistory {
  std::vector<double> accepted;  ///< the last accepted losses, the newest last
  std::vector<double> row;       ///< losses of the spikes since the last accepted one
  int64_t total = 0;             ///< spikes
  int64_t since = 0;             ///< steps since the last spike
  bool operator==(const SpikeHistory&) const = default;
};

/// Counters of the training loop.
struct Faults {
  int64_t consecutive_skipped =
      0;                      ///< steps that were not finite; spikes and loss-scale overflows do not count
  int64_t skipped_total = 0;  ///< steps without an update, whatever the reason
  int64_t rollbacks = 0;      ///< after loss spikes
  bool operator==(const Faults&) const = default;
};

/// What the run knows of its checkpoints (train/checkpoint_manager.h).
struct KeptCheckpoints {
  std::string last_verified;  ///< folder name of the last good one; empty: none
  std::vector<int64_t> drop;  ///< steps of checkpoints that are to be deleted once they are no longer `good`
  bool operator==(const KeptCheckpoints&) const = default;
};

struct Progress {
  int64_t step = 0;  ///< optimizer steps taken, skipped ones included
  int64_t consumed_samples = 0;
  int64_t updates = 0;  ///< steps that were not skipped: Adam's t
  Validation validation = {};
  Guard guard = {};
  LossScale loss_scale = {};
  SpikeHistory spikes = {};
  Faults faults = {};
  KeptCheckpoints checkpoints = {};
  bool operator==(const Progress&) const = default;
};

}  // namespace te::checkpoint
