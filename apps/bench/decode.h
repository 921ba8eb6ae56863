// te-bench decode: times te-generate's decoding passes, which add one token to each of a few sequences.
#pragma once

#include <CLI/CLI.hpp>

#include "parallel/world.h"

namespace te::bench {

void add_decode_command(CLI::App& app, parallel::World& world);

}  // namespace te::bench
