// te-bench attention: both passes of attention by themselves, whole sequences, documents and windows, and the part of
// a context rank.
#pragma once

#include <CLI/CLI.hpp>

namespace te::bench {

void add_attention_command(CLI::App& app);

}  // namespace te::bench
