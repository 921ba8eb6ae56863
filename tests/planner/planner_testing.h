// Shared by tests of the planner: shipped configs with synthetic data, and clusters.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "config/presets.h"
#include "planner/gpu.h"

namespace te::testing {

using Settings = std::vector<std::string>;

/// configs/NAME.yaml or preset:NAME, as used by te-bench step.
inline config::Config shipped_config(const std::string& name, const Settings& settings = {}) {
  Settings all{"data.synthetic=true", "data.train=[]", "data.valid=[]", "training.eval_interval=0"};
  all.insert(all.end(), settings.begin(), settings.end());
  return config::load_config(config::is_preset(name) ? name : TE_SOURCE_DIR "/configs/" + name + ".yaml",
                             all);
}

inline planner::Cluster cluster(const char* gpu, int gpus) {
  return {.gpu = planner::gpu_named(gpu), .gpus = gpus, .per_host = 8};
}

inline planner::Cluster h200s(int gpus) {
  return cluster("h200", gpus);
}

}  // namespace te::testing
