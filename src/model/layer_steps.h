// The timeline for planning a stage's scratch memory (core/scratch_packing.h). A pass runs the steps in this order:
// steps before the first layer, then the layers one after another, each with all steps of its direction, then steps
// after the last layer. docs/explanation/architecture.md has the same numbers.
//
//   forward     embedding | input_norm ... fc2, layer by layer | output_layer
//   backward    final_norm_backward | fc2_backward ... input_norm_backward, last layer first | embedding_backward
//               with recompute: full, each layer runs input_norm ... fc2 again immediately before fc2_backward
//   update      after all passes of a step
//
// Passes of several microbatches may run in any order, so data that lives from one pass to another is not scratch.
// Neither are the operands of a deferred wgrad. A step waits for all work that it launches on other CUDA streams.
#pragma once

#include "config/config.h"
#include "core/scratch_packing.h"

namespace te::model {

enum class Step : int {
  // Outside the layers.
  embedding,     ///< tokens become the residual stream
  output_layer,  ///< the end of a chunk: final norm, output layer and loss; or residual and delta are added
  final_norm_backward,  ///< starts the gradient of the residual stream
  embedding_backward,
  // A layer, forward.
  input_norm,  ///< 1: adds the output of the previous layer to the residual stream
  qkv,         ///< 2
  attention,   ///< 3
  proj,        ///< 4
  mlp_norm,    ///< 5: adds attention's output to the residual stream
  fc1,         ///< 6; in high precision includes 7
  activation,  ///< 7
  fc2,         ///< 8
  // Backward. An input that was not saved is recomputed in the step of its linear layer.
  fc2_backward,         ///< 8'; in high precision includes 7'
  activation_backward,  ///< 7'
  fc1_backward,         ///< 6'
  mlp_norm_backward,    ///< 5'
  proj_backward,        ///< 4'
  attention_backward,   ///< 3'
  qkv_backward,         ///< 2'
  input_norm_backward,  ///< 1': produces the gradient of the output of the previous layer
  // After all passes.
  update,  ///< the optimizer updates the weights
};

/// Steps first, ..., last of one layer.
constexpr Lifetime live(Step first, Step last) {
  return {static_cast<int>(first), static_cast<int>(last)};
}
constexpr Lifetime live(Step only) {
  return live(only, only);
}

/// Lifetime of the output of a layer, which the next layer or the end of the chunk reads.
constexpr Lifetime kLayerOutput = live(Step::input_norm, Step::fc2) | live(Step::output_layer);
/// Lifetime of tensors that the next layer or the final norm produces from the gradient of the residual stream for a
/// layer's backward pass. They stay alive while the layer's forward pass is recomputed.
constexpr Lifetime kUpstreamGradient = live(Step::final_norm_backward) | live(Step::input_norm_backward) |
                                       live(Step::input_norm, Step::fc2) | live(Step::fc2_backward);

/// Lifetime of tensors that the backward pass reads: empty (not scratch), or with recompute: full `lifetime`, because
/// the layer's forward pass runs again immediately before.
constexpr Lifetime saved(config::Recompute recompute, Lifetime lifetime) {
  return recompute == config::Recompute::full ? lifetime : Lifetime{};
}

}  // namespace te::model
