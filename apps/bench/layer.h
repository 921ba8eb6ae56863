// te-bench layer: forward and backward of one transformer layer, BF16 and FP8.
#pragma once

#include <CLI/CLI.hpp>

namespace te::bench {

void add_layer_command(CLI::App& app);

}  // namespace te::bench
