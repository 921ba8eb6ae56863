// A pass with one token per sequence for a few sequences on one GPU: a single kernel between two attentions
// (kernels/gemm/decode_megakernel.h).
//
//   embedding | norm, qkv | attention | proj, norm, fc1, fc2, norm, qkv | attention | ... | proj, norm, fc1, fc2,
//   final norm, logits
#pragma once

#include <deque>
#include <vector>

#include "kernels/gemm/decode_megakernel.h"
#include "model/norm.h"
#include "model/output_layer.h"
#include "model/transformer_layer.h"

namespace te::generate {

/// The parts after the layers.
struct MegakernelOutputLayer {
  const model::Norm& norm;
  const model::OutputLayer& output;
  Tensor logits;  ///< fp32 [rows, padded vocabulary]
};

class PersistentDecoder {
 public:
  void plan(MemoryPlan& plan);
  void start(const Context& context) const { context.zero(barrier_); }
  /// Runs all layers, from the embeddings in x_in to the logits. `activations`: of the pass's rows, per layer, all in
  /// the same memory. Returns false without launching anything if the megakernel does not support the layers or the
  /// number of rows.
  bool forward(const Context& context, const std::deque<model::TransformerLayer>& layers,
               const MegakernelOutputLayer& output_layer, std::deque<model::LayerActivations>& activations,
               const model::Pass& pass) const;
  /// Number of successful forward() calls, without replayed CUDA graphs.
  int64_t passes() const { return passes_; }

 private:
  std::vector<kernels::DecodeMegakernel> megakernels_of(
      const Context& context, const std::deque<model::TransformerLayer>& layers,
      const MegakernelOutputLayer& output_layer,
      const std::deque<model::LayerActivations>& activations) const;
  PlannedTensor barrier_;
  mutable int64_t passes_ = 0;
};

}  // namespace te::generate
