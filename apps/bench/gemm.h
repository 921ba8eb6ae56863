// te-bench gemm: the GEMMs of known layers, BF16 and FP8, forward and backward.
#pragma once

#include <CLI/CLI.hpp>

namespace te::bench {

void add_gemm_command(CLI::App& app);

}  // namespace te::bench
