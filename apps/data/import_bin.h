// te-data import-bin: token shards of llm.c and modded-nanogpt into a dataset.
#pragma once

#include <CLI/CLI.hpp>

namespace te::data {

void add_import_bin_command(CLI::App& app);

}  // namespace te::data
