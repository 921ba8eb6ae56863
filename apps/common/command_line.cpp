#include "common/command_line.h"

#include <fcntl.h>
#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>

#include "common/command_model.h"
#include "core/error.h"
#include "version/version.h"

namespace te::apps {
namespace {

volatile std::sig_atomic_t stop_requested = 0;

void request_stop(int) {
  stop_requested = 1;
}

/// Calls visit(option) for all options, of subcommands too.
void for_options(const CLI::App& app, const std::function<void(const CLI::Option&)>& visit) {
  for (const CLI::Option* option : app.get_options()) visit(*option);
  for (const CLI::App* command : app.get_subcommands({})) for_options(*command, visit);
}

/// CLI11's message in our words: it writes the largest double out, with 309 digits.
std::string message_of(const CLI::App& app, const CLI::ParseError& error) {
  std::string message = error.what();
  std::replace(message.begin(), message.end(), '\n', ' ');
  const size_t range = message.find(" not in range ");
  if (range == message.npos || message.size() < 300) return message;
  const std::string name = message.substr(0, message.find(':'));
  std::string rule = "out of range";
  for_options(app, [&](const CLI::Option& option) {
    if (option.get_name(false, true).find(name) == std::string::npos) return;
    rule = option.get_type_name().find("NONNEGATIVE") != std::string::npos ? "must be 0 or more"
                                                                           : "must be above 0";
  });
  const size_t value = message.find("Value ");
  return name + " " + message.substr(value + 6, range - value - 6) + ": " + rule;
}

/// Every check lets NaN pass, and no number of ours may be infinite.
void check_finite(const CLI::App& app) {
  for_options(app, [](const CLI::Option& option) {
    if (option.get_type_name().rfind("FLOAT", 0) != 0) return;
    for (const std::string& text : option.results()) {
      if (!std::isfinite(std::strtod(text.c_str(), nullptr)))
        user_error("{} {}: must be a finite number", option.get_name(), text);
    }
  });
}

/// Options by which a program describes itself; they leave what is to be printed in `shown`, and stop.
void add_descriptions(CLI::App& app, const ConfigWords& words, std::string& shown) {
  const auto show = [&shown](std::string text) {
    shown = std::move(text);
    throw CLI::Success();
  };
  const std::string version =
      fmt::format("{} {} (commit {})\n", app.get_name(), project_version(), build_commit());
  app.add_flag_callback(
      "--version", [show, version] { show(version); }, "Print version and commit, and stop");
  app.add_option_function<std::string>(
         "--completion",
         [show, &app, words](const std::string& shell) {
           show(completion_script(model_of(app), words, shell));
         },
         "Print a script that completes this command line in bash, zsh or fish, and stop")
      ->check(CLI::IsMember({"bash", "zsh", "fish"}))
      ->type_name("SHELL");
  app.add_flag_callback(
      "--man", [show, &app, words] { show(manual_page(model_of(app), words, project_version())); },
      "Print the manual page, for man -l, and stop");
}

int say_interrupted(const CLI::App& app) {
  fmt::print(stderr, "{}: interrupted; no output was written\n", app.get_name());
  return 130;
}

}  // namespace

void reserve_standard_streams() {
  while (true) {
    const int file = ::open("/dev/null", O_RDWR);
    if (file < 0 || file > STDERR_FILENO) {
      if (file >= 0) ::close(file);
      return;
    }
  }
}

bool parse_command_line(CLI::App& app, int argc, char** argv, bool quiet, const ConfigWords& words) {
  std::string shown;
  add_descriptions(app, words, shown);
  app.parse_complete_callback([&app] { check_finite(app); });
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // --help, or what add_descriptions added
      if (quiet) return false;
      if (shown.empty())
        app.exit(error);
      else
        fmt::print("{}", shown);
      return false;
    }
    user_error("{}; see {} --help", message_of(app, error), app.get_name());
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
