// The program's log: spdlog with one format. Progress and tables go to stdout, warnings and errors to stderr.
#pragma once

#include <spdlog/spdlog.h>

namespace te {

/// Sets the pattern and level of the default logger; rank >= 0 shows in every line of a parallel run.
void init_log(int rank = -1, spdlog::level::level_enum level = spdlog::level::info);

}  // namespace te
