// The loss scale of FP16 runs (Micikevicius et al., "Mixed Precision Training", arXiv 1710.03740). FP16's smallest
// number is 2^-24, and many gradients are below it, so the loss, and with it every gradient, is multiplied by a scale.
// FP32 gradients are stored scaled; their norm, clipping and the update use unscaled values. Gradients that overflow
// FP16 become infinite: such a step is skipped and the scale is lowered.
//
// The rule of torch.amp.GradScaler, with a minimum:
//   gradients not finite: good_steps = 0, scale = max(scale / 2, 1)
//   finite:               good_steps += 1; after 2,000 of them good_steps = 0, scale *= 2
// The gradient norm decides whether gradients are finite. It is bitwise equal on all ranks, so all ranks have the same
// scale.
#pragma once

#include "checkpoint/manifest.h"
#include "config/config.h"

namespace te::train {

class LossScaler {
 public:
  explicit LossScaler(const config::PrecisionConfig& precision);

  /// The run computes in FP16.
  bool active() const { return active_; }
  /// The initial state of a run, given the checkpoint's state in `found` (or a default one). No state in other dtypes,
  /// the fixed scale if one is set, the initial scale if the checkpoint has no state.
  checkpoint::LossScale start(const checkpoint::LossScale& found) const;
  /// Factor of the loss in the next step; 1 in other dtypes.
  double factor(const checkpoint::LossScale& state) const { return active_ ? state.scale : 1.0; }
  /// Records a step. Returns true if its gradients were not finite and a lower scale may help, which is normal. Returns
  /// false otherwise, and also when the scale is fixed or at its minimum.
  bool update(checkpoint::LossScale& state, bool finite) const;

 private:
  bool active_, fixed_;
  double initial_;
};

}  // namespace te::train
