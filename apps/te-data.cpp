// te-data: makes Megatron .bin/.idx datasets from text and token shards, and inspects, verifies and merges them. Each
// subcommand has its own file in apps/data/.
#include <CLI/CLI.hpp>

#include "common/command_line.h"
#include "common/standard_output.h"
#include "core/error.h"
#include "core/log.h"
#include "data/import_bin.h"
#include "data/inspect.h"
#include "data/instruct.h"
#include "data/merge.h"
#include "data/tokenize.h"
#include "data/verify.h"

namespace {

int body(int argc, char** argv) {
  te::init_log(te::LogLevel::warning, te::LogStream::error);
  CLI::App app(
      "te-data: makes datasets for te-train in Megatron's .bin/.idx format (docs/how-to/prepare-data.md)",
      "te-data");
  app.require_subcommand(1);
  te::data::add_tokenize_command(app);
  te::data::add_instruct_command(app);
  te::data::add_import_bin_command(app);
  te::data::add_inspect_command(app);
  te::data::add_merge_command(app);
  te::data::add_verify_command(app);
  return te::apps::run_commands(app, argc, argv);
}

}  // namespace

int main(int argc, char** argv) {
  te::apps::reserve_standard_streams();
  return te::run_main("te-data", te::apps::checked_output<body>, argc, argv);
}
