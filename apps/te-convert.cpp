// te-convert: converts models of other programs to te-train checkpoints and back, merges adapters, and inspects,
// compares and reshards checkpoints. Each subcommand has its own file in apps/convert/.
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
  CLI::App app(
      "te-convert: converts between te-train checkpoints and Hugging Face models (docs/how-to/convert.md)",
      "te-convert");
  app.footer(kFooter);
  app.require_subcommand(1);
  te::init_log(te::LogLevel::warning);
  te::convert::add_import(app);
  te::convert::add_export(app);
  te::convert::add_merge(app);
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
