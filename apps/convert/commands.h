// The subcommands of te-convert, a file of apps/convert/ each, and what they share: interruption.
#pragma once

#include <CLI/CLI.hpp>

namespace te::convert {

/// Ctrl-C and SIGTERM make check_interrupted() throw Interrupted, so that destructors remove unfinished files. A command
/// calls it between pieces of its work.
void catch_interrupts();
struct Interrupted {};
bool interrupted();
void check_interrupted();

}  // namespace te::convert
