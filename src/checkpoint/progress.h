// Progress of a run between two optimizer steps: all state that affects later steps, other than tensors and config.
// Policies of the training loop (src/train) have no state of their own but use their members here, so that a resumed
// run decides as an uninterrupted one. The manifest stores all of it (progress_json.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace te::checkpoint {

/// Results of a run's evaluations so far, for the best checkpoints and early stopping.
struct Validation {
  struct Best {
    int64_t step = 0;
    double loss = 0;
    bool extra = false;  ///< saved only because it is among the best
    bool operator==(const Best&) const = default;
  };
  std::string set;               ///< the validation set of the losses; empty before the first evaluation
  std::string samples;           ///< which samples of which data; empty if unknown
  std::optional<double> lowest;  ///< loss of the last improvement; empty before the first one
  int64_t without_gain = 0;      ///< evaluations since the last improvement
  std::vector<Best> best;        ///< checkpoints, lowest loss first
  bool operator==(const Validation&) const = default;
};

/// State of the guard of an FP8 run (train/guard.h).
struct Guard {
  std::vector<double> gaps;       ///< gaps of earlier comparisons, newest last
  int64_t began = -1;             ///< step at which the current comparison began; -1 if there is none
  std::vector<double> bf16, fp8;  ///< losses of its BF16 steps, and of its FP8 steps so far
  int64_t bf16_until = 0;         ///< steps up to this one run in BF16
  int64_t excesses = 0;
  void drop_comparison() { began = -1, bf16.clear(), fp8.clear(); }
  bool operator==(const Guard&) const = default;
};

/// The dynamic loss scale of an FP16 run (train/loss_scaler.h).
struct LossScale {
  double scale = 0;        ///< loss scale of the next step; 0 if the run has none
  int64_t good_steps = 0;  ///< steps with finite gradients since the last change of the scale
  bool operator==(const LossScale&) const = default;
};

/// Losses for the detection of loss spikes (train/loss_spikes.h).
struct SpikeHistory {
  std::vector<double> accepted;  ///< last accepted losses, newest last
  std::vector<double> row;       ///< losses of consecutive spikes since the last accepted loss
  int64_t total = 0;             ///< number of spikes
  int64_t since = 0;             ///< steps since the last spike
  bool operator==(const SpikeHistory&) const = default;
};

/// Counters of the training loop.
struct Faults {
  /// Consecutive skipped steps with non-finite gradients; spikes and loss-scale overflows are not counted.
  int64_t consecutive_skipped = 0;
  int64_t skipped_total = 0;  ///< steps without an update, for any reason
  int64_t rollbacks = 0;      ///< rollbacks after loss spikes
  bool operator==(const Faults&) const = default;
};

/// State of a run's checkpoints (train/checkpoint_manager.h).
struct KeptCheckpoints {
  std::string last_verified;  ///< folder name of the last verified checkpoint; empty if there is none
  std::vector<int64_t> drop;  ///< steps of checkpoints to delete once they are no longer last_verified
  bool operator==(const KeptCheckpoints&) const = default;
};

struct Progress {
  int64_t step = 0;  ///< optimizer steps, including skipped ones
  int64_t consumed_samples = 0;
  int64_t updates = 0;  ///< optimizer steps without skipped ones: Adam's t
  Validation validation = {};
  Guard guard = {};
  LossScale loss_scale = {};
  SpikeHistory spikes = {};
  Faults faults = {};
  KeptCheckpoints checkpoints = {};
  bool operator==(const Progress&) const = default;
};

}  // namespace te::checkpoint
