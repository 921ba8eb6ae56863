// A pass of one token each of a few sequences, on one GPU: one launch between two attentions
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

/// What is behind the layers.
struct MegakernelHead {
  const model::Norm& norm;
  const model::OutputLayer& output;
  Tensor logits;  ///< fp32 [rows, padded vocabulary]
};

class PersistentDecoder {
 public:
  void plan(MemoryPlan& plan);
  void start(const Context& context) const { context.zero(barrier_); }
  /// Through all layers: from the embeddings in a.x_in to the logits. a: of the pass's rows, with memory that all
  /// layers share; `cores`: the layers' attention. False: nothing was launched, the layers or these rows have no such
  /// launches.
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
  /// forward() calls that have launched; recorded passes that are replayed do not come here.
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
