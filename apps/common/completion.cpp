// Completion scripts for bash, generated from a program's command line. They are self-contained: completion does not
// start the program.
#include <fmt/ranges.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <string_view>

#include "common/command_model.h"

namespace te::apps {
namespace {

/// "te_train": the name as part of a shell function's name.
std::string identifier(std::string name) {
  std::ranges::replace(name, '-', '_');
  return name;
}

std::string joined(const std::vector<std::string>& words) {
  return fmt::format("{}", fmt::join(words, " "));
}

/// In single quotes, for the shell.
std::string shell_quoted(std::string_view text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? "'\\''" : std::string(1, c);
  return result + "'";
}

std::vector<std::string> key_words(const ConfigWords& words) {
  std::vector<std::string> keys;
  for (const KeyModel& key : words.keys) keys.push_back(key.path + "=");
  return keys;
}

std::vector<std::string> command_names(const CommandModel& program) {
  std::vector<std::string> names;
  for (const CommandModel& command : program.commands) names.push_back(command.name);
  return names;
}

/// How bash completes a value: the lines of a case branch.
std::string bash_value(const OptionModel& option) {
  switch (option.kind) {
    case ValueKind::choice:
      return fmt::format("words={}", shell_quoted(joined(option.choices)));
    case ValueKind::file:
      return "kind=file";
    case ValueKind::folder:
      return "kind=folder";
    case ValueKind::config:
      return "kind=config";
    case ValueKind::assignment:
      return "kind=assignment";
    default:
      return "kind=text";
  }
}

/// Case branches: "COMMAND OPTION)" completes the option's value, "COMMAND )" options and positional arguments.
std::string bash_branches(const CommandModel& command, const std::string& name,
                          const std::vector<std::string>& subcommands) {
  std::string branches, positional;
  std::vector<std::string> names;
  for (const OptionModel& option : command.options) {
    if (option.positional) {
      if (positional.empty()) positional = bash_value(option);
      continue;
    }
    names.insert(names.end(), option.names.begin(), option.names.end());
    if (option.kind == ValueKind::none) continue;
    for (const std::string& text : option.names)
      branches += fmt::format("    '{} {}') {} ;;\n", name, text, bash_value(option));
  }
  names.insert(names.end(), subcommands.begin(), subcommands.end());
  branches += fmt::format("    '{} '*) words={}", name, shell_quoted(joined(names)));
  if (!positional.empty()) branches += fmt::format("; [[ $current == -* ]] || {}", positional);
  return branches + " ;;\n";
}

// bash splits words at '=' and ':'. The script therefore splits the line itself, and removes the part before the last
// such character from its answers.
constexpr std::string_view kBashBegin =
    R"(# bash completion of {program}, written by `{program} --completion bash`
_{id}() {{
  local line="${{COMP_LINE:0:COMP_POINT}}" current previous command='' words='' kind='' word prefix='' i
  local -a split
  read -ra split <<<"$line"
  [[ $line == *[[:space:]] ]] && split+=('')
  current="${{split[-1]}}" previous=''
  ((${{#split[@]}} > 2)) && previous="${{split[-2]}}"
{find_command}  if [[ $current == --*=* ]]; then
    previous="${{current%%=*}}" prefix="${{current%%=*}}=" current="${{current#*=}}"
  fi
  case "$command $previous" in
)";

constexpr std::string_view kBashEnd = R"(  esac
  COMPREPLY=()
  case "$kind" in
    text) return ;;
    file) compopt -o filenames && mapfile -t COMPREPLY < <(compgen -f -- "$current") ;;
    folder) compopt -o filenames && mapfile -t COMPREPLY < <(compgen -d -- "$current") ;;
    config)
      mapfile -t COMPREPLY < <(compgen -W '{presets}' -- "$current"; compgen -d -S / -- "$current"
        compgen -f -- "$current" | grep -E '\.ya?ml$')
      [[ ${{COMPREPLY[0]-}} == */ ]] && compopt -o nospace
      ;;
    assignment)
      if [[ $current == *=* ]]; then
        case "${{current%%=*}}" in
{values}          *) return ;;
        esac
        if [[ $words == / ]]; then
          mapfile -t COMPREPLY < <(compgen -P "${{current%%=*}}=" -f -- "${{current#*=}}")
        else
          mapfile -t COMPREPLY < <(compgen -P "${{current%%=*}}=" -W "$words" -- "${{current#*=}}")
        fi
      else
        compopt -o nospace
        mapfile -t COMPREPLY < <(compgen -W '{keys}' -- "$current")
      fi
      ;;
    *) mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current") ;;
  esac
  current="$prefix$current" word=''
  for ((i = 0; i < ${{#current}}; ++i)); do
    case "${{current:i:1}}" in [=:]) [[ $COMP_WORDBREAKS == *"${{current:i:1}}"* ]] && word="${{current:0:i+1}}" ;; esac
  done
  [[ -z $prefix ]] || COMPREPLY=("${{COMPREPLY[@]/#/$prefix}}")
  COMPREPLY=("${{COMPREPLY[@]#"$word"}}")
}}
complete -F _{id} {program}
)";

std::string bash_values(const ConfigWords& words) {
  std::string text;
  for (const KeyModel& key : words.keys) {
    if (key.values.empty() && !key.is_path) continue;
    text += fmt::format("          {}) words={} ;;\n", key.path,
                        key.is_path ? "/" : shell_quoted(joined(key.values)));
  }
  return text;
}

/// The loop that finds the subcommand in the line; empty for a program without subcommands.
std::string bash_find_command(const CommandModel& program) {
  if (program.commands.empty()) return "";
  return fmt::format(
      "  for word in \"${{split[@]:1:${{#split[@]}}-2}}\"; do\n"
      "    case \"$word\" in {}) command=\"$word\" && break ;; esac\n"
      "  done\n",
      fmt::join(command_names(program), " | "));
}

}  // namespace

std::string completion_script(const CommandModel& program, const ConfigWords& words) {
  const std::string id = identifier(program.name);
  std::string text = fmt::format(fmt::runtime(kBashBegin), fmt::arg("program", program.name),
                                 fmt::arg("id", id), fmt::arg("find_command", bash_find_command(program)));
  for (const CommandModel& command : program.commands) text += bash_branches(command, command.name, {});
  text += bash_branches(program, "", command_names(program));
  return text + fmt::format(fmt::runtime(kBashEnd), fmt::arg("program", program.name), fmt::arg("id", id),
                            fmt::arg("presets", joined(words.presets)),
                            fmt::arg("values", bash_values(words)),
                            fmt::arg("keys", joined(key_words(words))));
}

}  // namespace te::apps
