// te-convert: turns models of other programs into checkpoints of te-train and back, and works on checkpoints. Each
// subcommand lives in its own file of apps/convert/.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>

#include "convert/commands.h"
#include "core/error.h"
#include "core/log.h"

namespace {

constexpr const char* kFooter =
    "Exit codes: 0 done, 1 internal error (diff: tensors differ), 2 wrong input, 130 interrupted.";

int interrupted() {
  fmt::print(stderr, "te-convert: interrupted; no output was written\n");
  return 130;
}

int body(int argc, char** argv) {
  CLI::App app("te-convert: checkpoints of te-train from and to Hugging Face models; docs/convert.md",
               "te-convert");
  app.footer(kFooter);
  app.require_subcommand(1);
  te::init_log(-1, spdlog::level::warn);
  te::convert::add_import(app);
  te::convert::add_export(app);
  int exit_code = 0;
  te::convert::add_reshard(app);
  te::convert::add_inspect(app);
  te::convert::add_diff(app, exit_code);
  te::convert::catch_interrupts();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help
    std::string message = error.what();
    std::replace(message.begin(), message.end(), '\n', ' ');
    te::user_error("{}; see te-convert --help", message);
  } catch (const te::convert::Interrupted&) {
    return interrupted();
  } catch (const te::UserError&) {
    if (te::convert::interrupted()) return interrupted();
    throw;
  }
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  return te::run_main("te-convert", body, argc, argv);
}
