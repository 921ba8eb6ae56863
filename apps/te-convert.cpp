// te-convert: turns models of other programs into checkpoints of te-train and back, and works on checkpoints. Each
// subcommand lives in its own file of apps/convert/.
#include <CLI/CLI.hpp>

#include "common/command_line.h"
#include "common/standard_output.h"
#include "convert/commands.h"
#include "core/error.h"
#include "core/log.h"

namespace {

constexpr const char* kFooter =
    "Exit codes: 0 done, 1 internal error (diff: tensors differ), 2 wrong input, 130 interrupted.";

int body(int argc, char** argv) {
  CLI::App app("te-convert: checkpoints of te-train from and to Hugging Face models; docs/how-to/convert.md",
               "te-convert");
  app.footer(kFooter);
  app.require_subcommand(1);
  te::init_log(spdlog::level::warn);
  te::convert::add_import(app);
  te::convert::add_export(app);
  te::convert::add_reshard(app);
  te::convert::add_inspect(app);
  int exit_code = 0;
  te::convert::add_diff(app, exit_code);
  const int ended = te::apps::run_commands(app, argc, argv);
  return ended != 0 ? ended : exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  te::apps::reserve_standard_streams();
  return te::run_main("te-convert", te::apps::checked_output<body>, argc, argv);
}
