#include "model/layer_config.h"

namespace te::model {

LayerConfig LayerConfig::of(const config::Config& config, const parallel::TensorParallel& tensor,
                            ExpertRanks* experts) {
  const config::TrainingConfig& training = config.training;
  const DType dtype = config::dtype_of(config.precision.dtype);
  return {
      .model = config.model,
      .dims = Dimensions::of(config.model, training.micro_batch_size, config.parallel.context, dtype, tensor),
      .recompute = training.recompute,
      .kept_weights = config::fp8_kept_weights(config),
      .adapter = config.adapter,
      .neftune_noise_alpha = training.neftune_noise_alpha,
      .z_loss = static_cast<float>(training.z_loss_coefficient),
      .max_documents = config.data.document_mask ? training.micro_batch_size * config.data.max_documents : 0,
      .experts = experts};
}

LayerConfig LayerConfig::of_layer(int64_t layer) const {
  LayerConfig config = *this;
  config.model = model.of_layer(layer);
  return config;
}

}  // namespace te::model
