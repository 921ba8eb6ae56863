// The part of validate() (config.h) that depends only on the keys of `model`.
#pragma once

#include "config/config.h"

namespace te::config {

/// UserError, in one line, for the first violated rule.
void check_model(const ModelConfig& model);

}  // namespace te::config
