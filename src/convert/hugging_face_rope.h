// Rotary position embeddings of a config.json. Private to src/convert.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "convert/json_keys.h"

namespace te::convert {

/// The keys of a rotation next to the section that holds it, and what te-train can express of it.
struct RopeKeys {
  const char* theta = "rope_theta";
  const char* partial = "partial_rotary_factor";
  double partial_default = 1.0;
  bool may_be_partial = false;
  bool partial_may_be_null = true;
  std::vector<std::string> types = {"default", "linear", "llama3", "yarn"};
};

/// Reads rope_parameters, or rope_scaling and the keys next to it, into `model`, whose kv_channels and
/// max_position_embeddings are read already. UserError for whatever te-train does not rotate by.
void read_rope(const JsonKeys& keys, const RopeKeys& names, config::ModelConfig& model);

/// Gemma 3: layers with a window (read already) have frequencies of their own, which no scaling changes.
void read_gemma_rope(const JsonKeys& keys, config::ModelConfig& model);

}  // namespace te::convert
