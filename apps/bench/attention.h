// te-bench attention: times the forward and backward pass of attention with whole sequences, documents and windows, and
// the part of one context-parallel rank.
#pragma once

#include <CLI/CLI.hpp>

#include "parallel/world.h"

namespace te::bench {

void add_attention_command(CLI::App& app, parallel::World& world);

}  // namespace te::bench
