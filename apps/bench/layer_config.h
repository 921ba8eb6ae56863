// The configs of the layers that te-bench layer times.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"

namespace te::bench {

/// The first layer of a run's config, for one microbatch, in the precision of a layer in the middle of the model. Full
/// recomputation is switched off: a single layer keeps its activations. UserError for a layer that te-bench layer does
/// not measure.
config::Config first_layer(const std::string& path, const std::vector<std::string>& overrides);

/// Layer shapes with published times: the GPT layer of Transformer Engine's tutorial, and Llama 2 7B's layer. UserError
/// for other names.
config::Config layer_config(const std::string& which);

/// Whether rules of precision.overrides change the precision of such a layer.
bool has_overrides(config::PrecisionConfig precision);

}  // namespace te::bench
