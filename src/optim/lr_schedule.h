// The learning rate of an optimizer step: linear warmup, then a decay. A pure function of the step, so a resumed run
// needs no state.
#pragma once

#include <cstdint>

#include "config/config.h"

namespace te::optim {

using config::LrDecay;

/// With w = warmup_steps, T = decay_steps and steps counted from 1:
///   step <= w        lr * step / w
///   step >  w        by `decay`, with p = (step - w) / (T - w):
///     constant       lr, also after T
///     linear         lr + (min_lr - lr) p
///     cosine         min_lr + (lr - min_lr) (1 + cos(pi p)) / 2   (Loshchilov and Hutter, arXiv 1608.03983)
///     wsd            warmup-stable-decay (Hu et al., arXiv 2404.06395): with
///                    s = max(w, T - wsd_decay_steps), lr while step <= s, then
///                    lr + (min_lr - lr) (step - s) / (T - s)
///   step >= T        min_lr (except constant); warmup takes precedence: with w >= T the rate rises to lr at w
///                    and is min_lr from w + 1 on
/// wsd of trainers that count from 0 (nanochat, modded-nanogpt) has the rates of T = steps of the run + 1.
/// Computed in FP64 and rounded once. The bounds are exact: at(w) is lr, at(T) is min_lr when T > w, each as FP32.
struct LrSchedule {
  double lr = 0.0;
  double min_lr = 0.0;
  int64_t warmup_steps = 0;
  int64_t decay_steps = 0;  ///< last step of the decay, counted from the start (including warmup)
  LrDecay decay = LrDecay::cosine;
  int64_t wsd_decay_steps = 0;  ///< length of the final decay, wsd only

  float at(int64_t step) const;
};

LrSchedule schedule_of(const config::OptimizerConfig& config);

}  // namespace te::optim
