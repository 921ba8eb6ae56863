#include "common/command_line.h"

#include <fcntl.h>
#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "common/command_model.h"
#include "core/error.h"
#include "core/suggest.h"
#include "version/version.h"

namespace te::apps {
namespace {

volatile std::sig_atomic_t stop_requested = 0;

void request_stop(int) {
  stop_requested = 1;
}

/// Calls visit(option) for all options, including those of subcommands.
void for_options(const CLI::App& app, const std::function<void(const CLI::Option&)>& visit) {
  for (const CLI::Option* option : app.get_options()) visit(*option);
  for (const CLI::App* command : app.get_subcommands({})) for_options(*command, visit);
}

/// The rule of a range in an option's type, such as "POSITIVE", "NONNEGATIVE" or "N:INT in [1 - 64]".
std::string range_rule(const std::string& type) {
  if (type.find("NONNEGATIVE") != std::string::npos) return "must be 0 or more";
  if (type.find("POSITIVE") != std::string::npos) return "must be above 0";
  const size_t begin = type.find(" in ["), middle = type.find(" - ", begin), end = type.find(']', middle);
  if (end == std::string::npos) return "out of range";
  return fmt::format("must be {} to {}", type.substr(begin + 5, middle - begin - 5),
                     type.substr(middle + 3, end - middle - 3));
}

/// The complaint about an integer that cannot be converted: CLI11 says "Could not convert: --repeats = 99999999999".
/// Empty for other messages.
std::string integer_complaint(const CLI::App& app, const std::string& message) {
  constexpr std::string_view kStart = "Could not convert: ";
  const size_t equals = message.find(" = ");
  if (!message.starts_with(kStart) || equals == message.npos) return "";
  const std::string name = message.substr(kStart.size(), equals - kStart.size()),
                    value = message.substr(equals + 3);
  bool integer = false;
  for_options(app, [&](const CLI::Option& option) {
    if (option.get_name() == name && option.count() > 0)
      integer = option.get_type_name().starts_with("INT") || option.get_type_name().starts_with("UINT");
  });
  if (!integer) return "";
  const bool digits = value.find_first_not_of("0123456789") == value.npos;
  return fmt::format("{} {}: {}", name, value, digits ? "is too large" : "must be a whole number");
}

/// CLI11's message on one line. Ranges get text of our own, because it differs between versions of CLI11 (one prints
/// the 309 digits of the largest double).
std::string message_of(const CLI::App& app, const CLI::ParseError& error) {
  std::string message = error.what();
  std::ranges::replace(message, '\n', ' ');
  if (std::string complaint = integer_complaint(app, message); !complaint.empty()) return complaint;
  const size_t range = message.find(" not in range "), value = message.find(": Value ");
  if (range == message.npos || value == message.npos) return message;
  const std::string name = message.substr(0, value);
  std::string rule;
  for_options(app, [&](const CLI::Option& option) {
    if (option.get_name() == name && option.count() > 0) rule = range_rule(option.get_type_name());
  });
  return fmt::format("{} {}: {}", name, message.substr(value + 8, range - value - 8), rule);
}

/// Keeps the line breaks of footers and descriptions: CLI11 2.5 and later would reflow them as paragraphs.
template <class Formatter>
void keep_lines(Formatter& formatter) {
  if constexpr (requires { formatter.enable_footer_formatting(false); }) {
    formatter.enable_footer_formatting(false);
    formatter.enable_description_formatting(false);
  }
}

/// The innermost subcommand that was given.
const CLI::App& reached(const CLI::App& app) {
  const std::vector<CLI::App*> commands = app.get_subcommands();  // without an argument: the given ones
  return commands.empty() ? app : reached(*commands.back());
}

/// Offers the long names of a command's options.
void offer_options(const CLI::App& command, std::string_view word, NearestNames& nearest) {
  for (const CLI::Option* option : command.get_options())
    for (const std::string& name : option->get_lnames()) nearest.add_if_near(word, "--" + name);
}

/// A suggestion for an unknown option, for example a question; empty if there is none.
std::string advice_on_option(const CLI::App& app, std::string_view word, const ConfigWords& words) {
  const CLI::App& given = reached(app);
  if (&given != &app && given.get_option_no_throw(std::string(word)) != nullptr)
    return fmt::format("put it after {}", given.get_name());
  NearestNames nearest;
  offer_options(given, word, nearest);
  if (const std::string key = words.advice(word); !key.empty() && (nearest.empty() || nearest.distance() > 0))
    return key;
  if (!nearest.empty()) return nearest.question("");
  for (const CLI::App* command : app.get_subcommands({})) {
    for (const CLI::Option* option : command->get_options())
      if (option->check_name(std::string(word)))
        return fmt::format("it is an option of {} {}", app.get_name(), command->get_name());
  }
  return "";
}

/// A suggestion for an unexpected argument.
std::string advice_on_word(const CLI::App& app, const std::string& word) {
  NearestNames nearest;
  if (app.get_subcommands().empty())
    for (const CLI::App* command : app.get_subcommands({})) nearest.add_if_near(word, command->get_name());
  if (!nearest.empty()) return nearest.question();
  const auto takes = [&](const char* option) { return reached(app).get_option_no_throw(option) != nullptr; };
  if (word.find('=') != std::string::npos && takes("--set"))
    return fmt::format("did you mean --set {}?", word);
  std::error_code ignored;
  const bool is_there = std::filesystem::exists(word, ignored);
  const bool config = word.ends_with(".yaml") || word.ends_with(".yml") || word.starts_with("preset:");
  if (takes("--config") && (config || is_there)) return fmt::format("did you mean --config {}?", word);
  if (takes("--checkpoint") && is_there) return fmt::format("did you mean --checkpoint {}?", word);
  return "";
}

/// The error of a command line with unknown words or without a required subcommand; empty for other errors.
std::string complaint_of(const CLI::App& app, const ConfigWords& words) {
  const std::vector<std::string> left = app.remaining(true);
  if (left.empty()) {
    std::string commands;
    for (const CLI::App* command : app.get_subcommands({}))
      commands += (commands.empty() ? "" : ", ") + command->get_name();
    const bool lacks_command = app.get_require_subcommand_min() > 0 && app.get_subcommands().empty();
    return lacks_command
               ? fmt::format("a subcommand is required: {}; see {} --help", commands, app.get_name())
               : "";
  }
  const bool is_option = left[0].size() > 1 && left[0][0] == '-';
  const std::string word = is_option ? left[0].substr(0, left[0].find('=')) : left[0];
  const std::string advice = is_option ? advice_on_option(app, word, words) : advice_on_word(app, word);
  return fmt::format("unknown {} {}; {}", is_option ? "option" : "argument", word,
                     advice.empty() ? fmt::format("see {} --help", app.get_name()) : advice);
}

/// The error of a program's own option that precedes a subcommand, which does not read it; empty if there is none.
std::string misplaced_option(const CLI::App& app) {
  const CLI::App& given = reached(app);
  if (&given == &app) return "";
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() == 0) continue;
    const std::string name = option->get_name();
    const bool known = given.get_option_no_throw(name) != nullptr;
    return fmt::format("{} before {} has no effect; {}", name, given.get_name(),
                       known ? fmt::format("put it after {}", given.get_name()) : "leave it out");
  }
  return "";
}

/// Rejects NaN and infinity: CLI11's checks accept NaN, and no option here may be infinite.
void check_finite(const CLI::App& app) {
  for_options(app, [](const CLI::Option& option) {
    if (option.get_type_name().rfind("FLOAT", 0) != 0) return;
    for (const std::string& text : option.results()) {
      if (!std::isfinite(std::strtod(text.c_str(), nullptr)))
        user_error("{} {}: must be a finite number", option.get_name(), text);
    }
  });
}

/// Adds --version and --completion. They store the text to print in `shown` and stop the parsing at once: CLI11 2.6 and
/// newer check before callbacks whether a required argument or subcommand is missing.
void add_descriptions(CLI::App& app, const ConfigWords& words, std::string& shown) {
  const auto show = [&shown](std::string text) {
    shown = std::move(text);
    throw CLI::Success();
  };
  const std::string version =
      fmt::format("{} {} (commit {})\n", app.get_name(), project_version(), build_commit());
  app.add_flag_callback(
         "--version", [show, version] { show(version); }, "Print version and commit, and stop")
      ->trigger_on_parse();
  app.add_option_function<std::string>(
         "--completion",
         [show, &app, words](const std::string&) { show(completion_script(model_of(app), words)); },
         "Print a script that completes this command line in bash, and stop")
      ->check(CLI::IsMember({"bash"}))
      ->type_name("SHELL")
      ->trigger_on_parse();
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
  keep_lines(*app.get_formatter());
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // --help or an option of add_descriptions
      if (quiet) return false;
      if (shown.empty())
        app.exit(error);
      else
        fmt::print("{}", shown);
      return false;
    }
    if (const std::string complaint = complaint_of(app, words); !complaint.empty())
      user_error("{}", complaint);
    if (const std::string misplaced = misplaced_option(app); !misplaced.empty()) user_error("{}", misplaced);
    user_error("{}; see {} --help", message_of(app, error), app.get_name());
  }
  if (const std::string misplaced = misplaced_option(app); !misplaced.empty()) user_error("{}", misplaced);
  return true;
}

void catch_interrupts() {
  struct sigaction action = {};
  action.sa_handler = request_stop;  // no SA_RESTART: a read that waits for a pipe returns, too
  action.sa_flags = static_cast<int>(SA_RESETHAND);  // a second Ctrl-C ends at once
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  std::signal(SIGXFSZ, SIG_IGN);
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
    if (interrupted()) return say_interrupted(app);  // for example a read that the signal interrupted
    throw;
  }
  return 0;
}

}  // namespace te::apps
