// te-bench gemm: times fprop, dgrad and wgrad GEMMs of the linear layers of three models, in BF16 and FP8.
#pragma once

#include <CLI/CLI.hpp>

namespace te::bench {

void add_gemm_command(CLI::App& app);

}  // namespace te::bench
