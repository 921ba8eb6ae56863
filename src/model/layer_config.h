// What the parts of a model are built from: the shape of the model, the sizes of a microbatch on this rank, and how
// training passes through a layer.
#pragma once

#include "config/config.h"
#include "model/dimensions.h"

namespace te::model {

struct LayerConfig {
  config::ModelConfig model;
  Dimensions dims;
  config::Recompute recompute = config::Recompute::none;
  config::Fp8KeptWeights kept_weights = config::Fp8KeptWeights::rowwise;  ///< `automatic` is decided
  float z_loss = 0.0f;                                                    ///< coefficient
  int64_t max_documents = 0;  ///< of a microbatch, where attention stays inside documents; else 0

  /// The whole config, for whoever builds a model: this is where it ends.
  static LayerConfig of(const config::Config& config, const parallel::TensorParallel& tensor);
  /// What one layer is built from: layers differ in their attention's window.
  LayerConfig of_layer(int64_t layer) const;
};

}  // namespace te::model
