// The loss scale of FP16 runs (Micikevicius et al., "Mixed Precision Training", arXiv 1710.03740). The smallest number
// of FP16 is 2^-24, and many gradients are below it: so the loss, and with it every gradient of the backward pass, is
// multiplied by a scale. Main gradients are kept scaled; their norm, clipping and the update are of gradients divided
// by the scale again. Gradients that outgrow FP16 become infinite: such a step updates nothing and lowers the scale.
//
// The rule is that of torch.amp.GradScaler, with the hysteresis of Megatron-LM's DynamicGradScaler:
//   gradients not finite: good_steps = 0, hysteresis -= 1, and once hysteresis <= 0
//                         scale = max(scale / 2, min_loss_scale)
//   finite:               good_steps += 1; after loss_scale_window of them good_steps = 0, hysteresis as configured,
//                         scale *= 2
// Whether gradients are finite says their norm, which has the same bits on all ranks, so that all have the same scale.
#pragma once

#include "checkpoint/manifest.h"
#include "config/config.h"

namespace te::train {

class LossScaler {
 public:
  explicit LossScaler(const config::PrecisionConfig& precision);

  /// The run computes in FP16.
  bool active() const { return active_; }
  /// The state that a run goes on with from `found`, that of a checkpoint or of none: with another dtype none, with a
  /// fixed scale that one, without a state to go on from the first.
  checkpoint::LossScale start(const checkpoint::LossScale& found) const;
  /// What losses are multiplied by in the next step; 1 in other dtypes.
  double factor(const checkpoint::LossScale& state) const { return active_ ? state.scale : 1.0; }
  /// Takes note of a step. True when its gradients were not finite and a lower scale may help: nothing is wrong then.
  /// False as well when the scale is fixed, or has reached its end.
  bool update(checkpoint::LossScale& state, bool finite) const;

 private:
  bool active_, fixed_;
  double initial_, least_;
  int64_t window_, hysteresis_;
};

}  // namespace te::train
