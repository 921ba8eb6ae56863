// The part of validate() (config.h) that depends only on the keys of `model`.
#pragma once

#include <cstdint>
#include <string>

#include "config/config.h"

namespace te::config {

/// UserError, in one line, for the first violated rule.
void check_model(const ModelConfig& model);

/// UserError if an FP8 GEMM cannot have this dimension, which `what` names.
void check_fp8_dimension(const Config& config, const std::string& what, int64_t size);

}  // namespace te::config
