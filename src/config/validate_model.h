// Of validate() (config.h): keys of `model` that cannot work together, whatever the rest of the config says.
#pragma once

#include "config/config.h"

namespace te::config {

/// UserError, one line, for the first rule that is broken.
void check_model(const ModelConfig& model);

}  // namespace te::config
