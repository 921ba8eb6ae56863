// Manual pages (troff with the man macros), generated from a program's command line.
#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <string_view>

#include "common/command_model.h"
#include "common/text.h"

namespace te::apps {
namespace {

constexpr std::string_view kPrograms[] = {"te-bench",      "te-convert",  "te-data",
                                          "te-experiment", "te-generate", "te-train"};

/// Escapes text for troff, so that it contains no requests and dashes stay ASCII.
std::string plain(std::string_view text) {
  std::string result;
  for (const char c : text) {
    const bool first = result.empty() || result.back() == '\n';
    if (first && (c == '.' || c == '\'')) result += "\\&";
    if (c == '\\')
      result += "\\e";
    else if (c == '-')
      result += "\\-";
    else
      result += c;
  }
  return result;
}

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

/// The summary without the program's name: "trains models" from "te-train: trains models".
std::string summary(const CommandModel& program) {
  const std::string line = first_line(program.description), own = program.name + ": ";
  return line.starts_with(own) ? line.substr(own.size()) : line;
}

std::string option_entry(const OptionModel& option) {
  std::string names;
  for (const std::string& name : option.names)
    names += fmt::format("{}\\fB{}\\fR", names.empty() ? "" : ", ", plain(name));
  if (option.kind == ValueKind::choice)
    names += fmt::format(" {}", plain(fmt::format("{}", fmt::join(option.choices, "|"))));
  else if (option.kind != ValueKind::none && !option.positional)
    names += fmt::format(" \\fI{}\\fR", plain(option.value_name));
  return fmt::format(".TP\n{}{}\n{}\n", names, option.repeats ? " ..." : "", plain(option.description));
}

std::string option_entries(const CommandModel& command) {
  std::string text;
  for (const OptionModel& option : command.options) text += option_entry(option);
  return text;
}

/// Without reflowing, for examples and tables.
std::string verbatim(const std::string& text) {
  return ".nf\n" + plain(text) + "\n.fi\n";
}

std::string command_section(const CommandModel& command, const std::string& program) {
  std::string text =
      fmt::format(".SS {} {}\n{}\n", plain(program), plain(command.name), plain(command.description));
  text += option_entries(command);
  if (!command.footer.empty()) text += ".PP\n" + verbatim(command.footer);
  return text;
}

std::string key_section(const ConfigWords& words) {
  std::string text =
      ".SH CONFIG KEYS\nKeys of the sections of a YAML file, or \\-\\-set KEY=VALUE. "
      "te\\-train \\-\\-describe\\-keys prints defaults and ranges.\n";
  for (const KeyModel& key : words.keys) {
    const std::string values = key.values.empty() ? "" : fmt::format(" {}", fmt::join(key.values, "|"));
    text += fmt::format(".TP\n\\fB{}\\fR{}\n{}\n", plain(key.path), plain(values), plain(key.meaning));
  }
  return text;
}

}  // namespace

std::string manual_page(const CommandModel& program, const ConfigWords& words, const std::string& version) {
  std::string text =
      fmt::format(".TH {} 1 \"\" \"te\\-train {}\" \"User Commands\"\n", upper_case(program.name), version);
  text += fmt::format(".SH NAME\n{} \\- {}\n", plain(program.name), plain(summary(program)));
  text += fmt::format(".SH SYNOPSIS\n\\fB{}\\fR [\\fIOPTIONS\\fR]{}\n", plain(program.name),
                      program.commands.empty() ? "" : " [\\fICOMMAND\\fR [\\fIOPTIONS\\fR]]");
  if (first_line(program.description) != program.description)
    text += ".SH DESCRIPTION\n" + verbatim(program.description.substr(program.description.find('\n') + 1));
  text += ".SH OPTIONS\n" + option_entries(program);
  if (!program.commands.empty()) text += ".SH COMMANDS\n";
  for (const CommandModel& command : program.commands) text += command_section(command, program.name);
  if (!program.footer.empty()) text += ".SH NOTES\n" + verbatim(program.footer);
  if (!words.keys.empty()) text += key_section(words);
  text += ".SH SEE ALSO\n";
  std::string others;
  for (const std::string_view other : kPrograms)
    if (other != program.name)
      others += fmt::format("{}\\fB{}\\fR(1)", others.empty() ? "" : ", ", plain(other));
  return text + others +
         "\n.PP\nDocumentation and example configs are in share/doc/te\\-train and share/te\\-train.\n";
}

}  // namespace te::apps
