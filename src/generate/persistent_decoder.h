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
struct MegakernelHead {
  const model::Norm& norm;
  const model::OutputLayer& output;
  Tensor logits;  ///< fp32 [rows, padded vocabulary]
};

class PersistentDecoder {
 public:
  void plan(MemoryPlan& plan);
  void start(const Context& context) const { context.zero(barrier_); }
  /// Runs all layers, from the embeddings in a.x_in to the logits. `a`: activations of the pass's rows, which all
  /// layers share; `cores`: the layers' attention. Returns false without launching anything if the megakernel does not
  /// support the layers or the number of rows.
  template <class Cores>
  bool forward(const Context& context, const std::deque<model::TransformerLayer>& layers, const Cores& cores,
               const MegakernelHead& head, model::LayerActivations& a, const model::Pass& pass) const {
    const std::vector<kernels::DecodeMegakernel> megakernels = megakernels_of(context, layers, head, a);
    if (megakernels.empty()) return false;
    for (size_t i = 0; i < layers.size(); ++i) {
      kernels::decode_megakernel(context, megakernels[i]);
      a.attention.core = &cores[i];
      layers[i].attend(context, a, pass);
    }
    kernels::decode_megakernel(context, megakernels.back());
    ++passes_;
    return true;
  }
  /// Number of successful forward() calls, without replayed CUDA graphs.
  int64_t passes() const { return passes_; }

 private:
  std::vector<kernels::DecodeMegakernel> megakernels_of(const Context& context,
                                                        const std::deque<model::TransformerLayer>& layers,
                                                        const MegakernelHead& head,
                                                        const model::LayerActivations& a) const;
  Tensor barrier_;
  mutable int64_t passes_ = 0;
};

}  // namespace te::generate
