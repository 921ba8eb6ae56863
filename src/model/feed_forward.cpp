#include "model/feed_forward.h"

#include "model/mlp.h"
#include "model/moe_feed_forward.h"

namespace te::model {

std::unique_ptr<FeedForward> make_feed_forward(const std::string& layer_name, int index,
                                               const LayerConfig& config,
                                               parameters::ParameterStore& parameters, Recipe& recipe,
                                               parallel::TensorParallel& tensor) {
  if (config.model.num_moe_experts > 0)
    return std::make_unique<MoeFeedForward>(index, config, parameters, recipe, tensor);
  return std::make_unique<Mlp>(layer_name, index, config, parameters, recipe, tensor);
}

}  // namespace te::model
