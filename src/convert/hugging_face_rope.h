// Reads the rotary position embeddings of a config.json. Private to src/convert.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "convert/json_keys.h"

namespace te::convert {

/// Names of the RoPE keys outside the RoPE section, and the variants that te-train supports for the class.
struct RopeKeys {
  const char* theta = "rope_theta";
  double theta_default = 10000.0;
  const char* partial = "partial_rotary_factor";
  double partial_default = 1.0;
  bool may_be_partial = false;
  bool partial_may_be_null = true;
  std::vector<std::string> types = {"default", "linear", "llama3", "yarn"};
};

/// Reads rope_parameters, or rope_scaling and the keys outside it, into `model`, whose kv_channels and
/// max_position_embeddings must already be set. UserError for a variant of RoPE that te-train does not support.
void read_rope(const JsonKeys& keys, const RopeKeys& names, config::ModelConfig& model);

/// Gemma 3: layers with a window have separate frequencies, which are not scaled. The model's windows must already be
/// set.
void read_gemma_rope(const JsonKeys& keys, config::ModelConfig& model);

}  // namespace te::convert
