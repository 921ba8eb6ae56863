// te-data: makes Megatron .bin/.idx datasets out of text, and shows, checks and joins them. Each subcommand
// lives in its own file of apps/data/.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>

#include "core/error.h"
#include "data/command.h"
#include "data/inspect.h"
#include "data/instruct.h"
#include "data/merge.h"
#include "data/tokenize.h"
#include "data/verify.h"

namespace {

int interrupted() {
  fmt::print(stderr, "te-data: interrupted; no output was written\n");
  return 130;
}

int body(int argc, char** argv) {
  CLI::App app("te-data: datasets for te-train (Megatron's .bin/.idx format); docs/data.md shows it at work",
               "te-data");
  app.require_subcommand(1);
  te::data::add_tokenize_command(app);
  te::data::add_instruct_command(app);
  te::data::add_inspect_command(app);
  te::data::add_merge_command(app);
  te::data::add_verify_command(app);
  te::data::catch_interrupts();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help
    std::string message = error.what();
    std::replace(message.begin(), message.end(), '\n', ' ');
    te::user_error("{}; see te-data --help", message);
  } catch (const te::data::Interrupted&) {
    return interrupted();
  } catch (const te::UserError&) {
    if (te::data::interrupted()) return interrupted();  // such as a read that the signal ended
    throw;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return te::run_main("te-data", body, argc, argv);
}
