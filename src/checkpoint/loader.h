// Loads a rank's state from a checkpoint of any parallel layout, or its weights from any WeightSource. Each rank reads
// the elements that it needs of the full tensors, without communication.
#pragma once

#include "checkpoint/reader.h"
#include "checkpoint/training_state.h"
#include "config/config.h"

namespace te::checkpoint {

/// What to load from a checkpoint in addition to the FP32 master weights. Moments are converted to the state's dtype.
struct LoadOptions {
  bool optimizer = true;  ///< moments; if false, or if the checkpoint has none, they start at zero
  bool fp8 = true;        ///< scales and amax histories, if the state has them
};

struct Loaded {
  /// The checkpoint's progress. `updates` is 0 without moments: Adam's bias correction counts their updates.
  Progress progress;
  bool optimizer = false;  ///< moments were loaded
  /// The checkpoint has FP8 state, which was loaded if the state has some; if false, the state has its initial values.
  bool scales = false;
};

/// Loads master weights, moments and FP8 state. The caller then converts, gathers and quantizes weights. The number of
/// rows that pad the vocabulary may differ from the checkpoint: surplus rows are dropped, missing ones get their
/// initial values (zero in the moments).
///
/// Throws UserError (one line) if the checkpoint belongs to a different model (it names the first key of `model` that
/// differs), a tensor is missing or has a different shape, FP8 scales do not fit or are missing without calibration, or
/// a file is damaged. The checks need the complete config.
Loaded load(const Context& context, const Reader& reader, const config::Config& config,
            const TrainingState& state, const LoadOptions& options = {});

/// Loads only the weights and sets moments to zero, to start a run from existing weights. An adapter of the run keeps
/// its values. UserError as above.
void load_weights(const Context& context, const WeightSource& source, const config::Config& config,
                  const TrainingState& state);

/// Loads the adapter of a run, and all other parameters that the source has.
void load_adapter(const Context& context, const WeightSource& source, const config::Config& config,
                  const TrainingState& state);

/// Throws UserError if the adapter of the checkpoint differs from the config's.
void check_same_adapter(const Reader& reader, const config::Config& config);

/// Throws UserError if a key of `model` that determines names or shapes of tensors differs between the source's config
/// and this one. Warns about differences in keys that change what the weights compute (rope_theta, norm_epsilon, ...).
void check_same_model(const WeightSource& source, const config::Config& config);

}  // namespace te::checkpoint
