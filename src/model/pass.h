// The kind of a pass and the samples that it runs on.
#pragma once

#include <cstdint>
#include <functional>

#include "core/device.h"
#include "core/tensor.h"
#include "fp8/recipe.h"
#include "model/layer_steps.h"

namespace te::model {

enum class PassKind : uint8_t { train, recompute, evaluate };

struct Pass {
  PassKind kind = PassKind::train;
  int64_t first_sample =
      0;  ///< global index of the microbatch's first sample, on which dropout and stochastic rounding depend
  uint64_t dropout_seed = 0;
  bool count_fp8 = false;  ///< collect saturation counters in this pass
  bool new_scales =
      false;  ///< a recomputed pass computes current scales again: the first pass does not keep them
  bool last_microbatch = false;  ///< last of the step: its backward pass completes the gradients
  /// Factor of the auxiliary losses, which are sums over tokens: the gradient scale divided by the tokens of the global
  /// batch, without padding.
  float auxiliary_scale = 0.0f;
  Tensor document_start;  ///< int32 [tokens], with data.document_mask; see kernels/attention
  /// int32 [tokens of this context-parallel rank], or empty if no position is padding: experts skip positions whose
  /// target is kPaddingTarget.
  Tensor targets;
  /// fp32 [sequences of the microbatch], or empty: the output layer adds each sequence's loss (sum over counted tokens)
  /// to its element, on tensor-parallel rank 0 only.
  Tensor sequence_losses;
  /// fp32 [1], or empty: the output layer adds the microbatch's z-loss (sum over counted tokens), on tensor-parallel
  /// rank 0 only.
  Tensor z_loss_sum;
  Tensor
      positions;  ///< int32 [rows]: position of each token in its sequence, in generation; empty for full sequences
  std::function<void(const Context&, Step)> on_step;  ///< for tests: MemoryPlan::begin_step

  void begin_step(const Context& context, Step step) const {
    if (on_step) on_step(context, step);
  }
  bool evaluating() const { return kind == PassKind::evaluate; }
  /// Only the first training pass of a microbatch records statistics; a recomputed pass would count them twice.
  fp8::QuantizeMode quantize_mode() const {
    const bool training = kind == PassKind::train;
    return {.record_amax = training,
            .count = training && count_fp8,
            .columnwise = !evaluating(),
            .is_recompute = kind == PassKind::recompute && !new_scales,
            .seed = dropout_seed,
            .sample = first_sample};
  }
  Pass recomputed() const {
    Pass pass = *this;
    pass.kind = PassKind::recompute;
    return pass;
  }
};

}  // namespace te::model
