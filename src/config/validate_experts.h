// Checks of mixtures of experts.
#pragma once

#include "config/config.h"

namespace te::config {

/// UserError for invalid keys.
void check_experts(const ModelConfig& model);
/// UserError for features that do not support mixtures of experts, and sizes that FP8 does not support.
void check_experts(const Config& config);
/// Of a run's config, not of a checkpoint's or an imported one: the loss trains the router.
void check_router_learns(const Config& config);

}  // namespace te::config
