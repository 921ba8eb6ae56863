// The parameters from which the parts of a model are built: shape of the model, sizes of a microbatch on this rank, and
// training settings of a layer.
#pragma once

#include "config/config.h"
#include "model/dimensions.h"

namespace te::model {

class ContextParallel;
class ExpertRanks;

struct LayerConfig {
  config::ModelConfig model;
  Dimensions dims;
  config::Recompute recompute = config::Recompute::none;
  config::Fp8KeptWeights kept_weights =
      config::Fp8KeptWeights::rowwise;     ///< never `automatic`, which is resolved
  config::AdapterConfig adapter{};         ///< of the linear layers
  double neftune_noise_alpha = 0.0;        ///< of the embedding
  float z_loss = 0.0f;                     ///< coefficient
  const ContextParallel* ranks = nullptr;  ///< of context parallelism; null: one rank
  int64_t max_documents = 0;               ///< documents of a microbatch, with data.document_mask; else 0
  ExpertRanks* experts = nullptr;          ///< the ranks that divide the experts; null: one rank
  /// The ranks with the other sequences of the global batch, for their experts' loads; null: one rank.
  parallel::Communicator* batch_ranks = nullptr;

  static LayerConfig of(const config::Config& config, const parallel::TensorParallel& tensor,
                        ExpertRanks* experts = nullptr);
  /// The config of one layer; layers may differ in their attention window.
  LayerConfig of_layer(int64_t layer) const;
};

}  // namespace te::model
