// te-bench gemm: times fprop, dgrad and wgrad GEMMs of the linear layers of three models, in BF16 and FP8.
#pragma once

#include <CLI/CLI.hpp>

#include "parallel/world.h"

namespace te::bench {

void add_gemm_command(CLI::App& app, parallel::World& world);

}  // namespace te::bench
