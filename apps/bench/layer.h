// te-bench layer: forward and backward of one transformer layer, BF16 and FP8, alone or on tensor and context ranks.
#pragma once

#include <CLI/CLI.hpp>

#include "parallel/world.h"

namespace te::bench {

void add_layer_command(CLI::App& app, parallel::World& world);

}  // namespace te::bench
