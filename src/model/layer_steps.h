// The timeline by which a stage's scratch memory is planned (core/scratch_packing.h). A pass goes through the steps in
// this order: its layers one after another, each through all steps of its direction, between what lies in front of the
// first and behind the last. The numbers are those of docs/explanation/architecture.md.
//
//   forward     embedding | input_norm ... fc2, layer by layer | head
//   backward    final_norm_backward | fc2_backward ... input_norm_backward, last layer first | embedding_backward
//               with recompute: full each layer goes through input_norm ... fc2 again right before fc2_backward
//   update      behind all passes of a step
//
// Passes of several microbatches follow one another in any order: what lives from one pass to another is no scratch.
// Nor is what a weight gradient reads that is put off. Whatever a step launches on streams of its own has been waited
// for when it ends.
#pragma once

#include "config/config.h"
#include "core/scratch_packing.h"

namespace te::model {

enum class Step : int {
  // Beside the layers.
  embedding,  ///< tokens become the stream
  head,       ///< the end of a chunk: final norm, head and loss, or the stream's pair becomes one tensor
  final_norm_backward,  ///< the stream's gradient begins
  embedding_backward,
  // A layer, forward.
  input_norm,  ///< 1: the stream joins the output of the layer below
  qkv,         ///< 2
  attention,   ///< 3
  proj,        ///< 4
  mlp_norm,    ///< 5: the stream joins attention's output
  fc1,         ///< 6, and in high precision 7 with it
  activation,  ///< 7
  fc2,         ///< 8
  // Backward. An input that was not kept is made again in the step of its linear.
  fc2_backward,         ///< 8', and in high precision 7' with it
  activation_backward,  ///< 7'
  fc1_backward,         ///< 6'
  mlp_norm_backward,    ///< 5'
  proj_backward,        ///< 4'
  attention_backward,   ///< 3'
  qkv_backward,         ///< 2'
  input_norm_backward,  ///< 1': makes the gradient of the output of the layer below
  // Behind all passes.
  update,  ///< of the weights, by the optimizer
};

/// Steps first, ..., last, of those that follow each other in one layer.
constexpr Lifetime live(Step first, Step last) {
  return {static_cast<int>(first), static_cast<int>(last)};
}
constexpr Lifetime live(Step only) {
  return live(only, only);
}

/// What a layer hands on to the next one, or to the end of its chunk: it is alive from layer to layer.
constexpr Lifetime kLayerOutput = live(Step::input_norm, Step::fc2) | live(Step::head);
/// What is made of the stream's gradient for a layer before its backward pass: by the layer above or the final norm,
/// and kept while the layer's forward pass is repeated.
constexpr Lifetime kUpstreamGradient = live(Step::final_norm_backward) | live(Step::input_norm_backward) |
                                       live(Step::input_norm, Step::fc2) | live(Step::fc2_backward);

/// Of what the backward pass reads: memory of its own, or with recompute: full scratch, since the layer's forward pass
/// has then run again right before.
constexpr Lifetime saved(config::Recompute recompute, Lifetime lifetime) {
  return recompute == config::Recompute::full ? lifetime : Lifetime{};
}

}  // namespace te::model
