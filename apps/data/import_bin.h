// te-data import-bin: converts token shards of llm.c and modded-nanogpt to a dataset.
#pragma once

#include <CLI/CLI.hpp>

namespace te::data {

void add_import_bin_command(CLI::App& app);

}  // namespace te::data
