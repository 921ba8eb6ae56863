#include "common/command_line.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <string>

#include "core/error.h"

namespace te::apps {
namespace {

volatile std::sig_atomic_t stop_requested = 0;

void request_stop(int) {
  stop_requested = 1;
}

int say_interrupted(const CLI::App& app) {
  fmt::print(stderr, "{}: interrupted; no output was written\n", app.get_name());
  return 130;
}

}  // namespace

bool parse_command_line(CLI::App& app, int argc, char** argv, bool quiet) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // --help
      if (!quiet) app.exit(error);
      return false;
    }
    std::string message = error.what();
    std::replace(message.begin(), message.end(), '\n', ' ');
    user_error("{}; see {} --help", message, app.get_name());
  }
  return true;
}

void catch_interrupts() {
  struct sigaction action = {};
  action.sa_handler = request_stop;                  // no SA_RESTART: a read that waits for a pipe ends too
  action.sa_flags = static_cast<int>(SA_RESETHAND);  // a second Ctrl-C ends at once
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

bool interrupted() {
  return stop_requested != 0;
}

void check_interrupted() {
  if (interrupted()) throw Interrupted();
}

int run_commands(CLI::App& app, int argc, char** argv) {
  catch_interrupts();
  try {
    parse_command_line(app, argc, argv);
  } catch (const Interrupted&) {
    return say_interrupted(app);
  } catch (const UserError&) {
    if (interrupted()) return say_interrupted(app);  // such as a read that the signal ended
    throw;
  }
  return 0;
}

}  // namespace te::apps
