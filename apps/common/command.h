// A command of a program whose commands run on several ranks.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "parallel/world.h"

namespace te::apps {

struct Command {
  CLI::App* app;
  std::function<int(parallel::World&)> run;  ///< returns the exit code
  bool chosen() const { return app->parsed(); }
};

}  // namespace te::apps
