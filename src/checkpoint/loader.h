// Fills a rank's state from a checkpoint, whatever layout of ranks has written it, or its weights from any source:
// every rank reads the elements that it needs of the whole tensors, without communication.
#pragma once

#include "checkpoint/reader.h"
#include "checkpoint/training_state.h"
#include "config/config.h"

namespace te::checkpoint {

/// What is taken from a checkpoint besides the main parameters. Moments are converted to the state's dtype.
struct LoadOptions {
  bool optimizer = true;  ///< moments; else, and where the checkpoint has none, they start at zero
  bool fp8 = true;        ///< scales and amax histories, where the state has them
};

struct Loaded {
  /// Of the checkpoint; `updates` is 0 without moments, since the bias correction belongs to them.
  Progress progress;
  bool optimizer = false;  ///< moments were loaded
  bool scales =
      false;  ///< the checkpoint has FP8 state; loaded where the state has some, which else starts anew
};

/// The caller casts, gathers and quantizes values afterwards. Rows that pad the vocabulary need not be as many as in
/// the checkpoint: superfluous ones are dropped, missing ones get their initial values (zero in the moments).
///
/// UserError, one line: the checkpoint is of another model (the first key of `model` that differs is named), a tensor
/// is missing or of another shape, FP8 scales do not fit or are missing and cannot be found anew, or a file is damaged.
/// That is why it takes the whole config.
Loaded load(const Context& context, const Reader& reader, const config::Config& config,
            const TrainingState& state, const LoadOptions& options = {});

/// The weights alone, with moments of zero: how a run starts from the weights of another. UserError as above.
void load_weights(const Context& context, const WeightSource& source, const config::Config& config,
                  const TrainingState& state);

/// UserError when a key of `model` that decides about names and shapes of tensors differs between the source's config
/// and this one; a warning for keys that change what the weights compute (rope_theta, norm_epsilon, ...).
void check_same_model(const WeightSource& source, const config::Config& config);

}  // namespace te::checkpoint
