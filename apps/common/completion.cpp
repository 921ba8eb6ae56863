// Completion scripts for bash, zsh and fish, generated from a program's command line. They are self-contained:
// completion does not start the program.
#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <string_view>

#include "common/command_model.h"
#include "core/error.h"

namespace te::apps {
namespace {

/// "te_train": the name as part of a shell function's name.
std::string identifier(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

std::string joined(const std::vector<std::string>& words) {
  return fmt::format("{}", fmt::join(words, " "));
}

/// In single quotes, for any shell; fish interprets backslashes in single quotes, too.
std::string shell_quoted(std::string_view text, bool fish = false) {
  std::string result = "'";
  for (const char c : text) {
    if (c == '\'')
      result += fish ? "\\'" : "'\\''";
    else if (c == '\\' && fish)
      result += "\\\\";
    else
      result += c;
  }
  return result + "'";
}

/// Puts a backslash before each of `characters`.
std::string escaped(std::string_view text, std::string_view characters) {
  std::string result;
  for (const char c : text) {
    if (characters.find(c) != characters.npos) result += '\\';
    result += c;
  }
  return result;
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

// ------------------------------------------------------------------------------------------------ bash

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

std::string bash_script(const CommandModel& program, const ConfigWords& words) {
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

// ------------------------------------------------------------------------------------------------- zsh

/// The action of an _arguments specification.
std::string zsh_action(const OptionModel& option, const std::string& id) {
  switch (option.kind) {
    case ValueKind::choice:
      return fmt::format("({})", fmt::join(option.choices, " "));
    case ValueKind::file:
      return "_files";
    case ValueKind::folder:
      return "_files -/";
    case ValueKind::config:
      return "_" + id + "_config";
    case ValueKind::assignment:
      return "_" + id + "_set";
    default:
      return " ";
  }
}

/// Specifications of options for _arguments, one a line.
std::string zsh_arguments(const CommandModel& command, const std::string& id, const std::string& indent) {
  std::string text;
  for (const OptionModel& option : command.options) {
    std::string value;
    if (option.kind != ValueKind::none)
      value = fmt::format(":{}:{}", escaped(option.value_name, ":"), zsh_action(option, id));
    if (option.positional) {
      text += fmt::format(" \\\n{}{}", indent, shell_quoted((option.repeats ? "*" : "") + value));
      continue;
    }
    for (const std::string& name : option.names) {
      const std::string others = option.repeats ? "*" : fmt::format("({})", fmt::join(option.names, " "));
      text += fmt::format(
          " \\\n{}{}", indent,
          shell_quoted(fmt::format("{}{}[{}]{}", others, name, escaped(option.description, "[]:\\"), value)));
    }
  }
  return text;
}

std::string zsh_config_functions(const ConfigWords& words, const std::string& id) {
  if (words.keys.empty()) return "";
  std::string text = fmt::format(
      "_{}_config() {{\n  _alternative 'presets:preset:({})' 'files:file:_files -g \"*.y(|a)ml\"'\n}}\n\n",
      id, escaped(joined(words.presets), ":"));
  text += fmt::format("_{}_set() {{\n  if compset -P '*='; then\n    case ${{IPREFIX%=}} in\n", id);
  for (const KeyModel& key : words.keys) {
    if (key.is_path) text += fmt::format("      *{}) _files ;;\n", key.path);
    if (!key.values.empty())
      text += fmt::format("      *{}) compadd -- {} ;;\n", key.path, fmt::join(key.values, " "));
  }
  text += "    esac\n  else\n    local -a keys=(\n";
  for (const KeyModel& key : words.keys)
    text += fmt::format("      {}\n", shell_quoted(key.path + ":" + key.meaning));
  return text + "    )\n    _describe -t keys key keys -S =\n  fi\n}\n\n";
}

std::string zsh_script(const CommandModel& program, const ConfigWords& words) {
  const std::string id = identifier(program.name);
  std::string text = fmt::format(
      "#compdef {0}\n# zsh completion of {0}, written by `{0} --completion zsh`\n\n", program.name);
  text += zsh_config_functions(words, id);
  text += fmt::format("_{}() {{\n", id);
  if (program.commands.empty()) {
    text += "  _arguments -s" + zsh_arguments(program, id, "    ") + "\n";
  } else {
    text += "  local curcontext=$curcontext state line ret=1\n  local -a commands=(\n";
    for (const CommandModel& command : program.commands)
      text += fmt::format("    {}\n", shell_quoted(command.name + ":" + command.description));
    text += "  )\n  _arguments -s -C" + zsh_arguments(program, id, "    ") +
            " \\\n    '1: :->command' '*:: :->argument' && ret=0\n";
    text +=
        "  case $state in\n    command) _describe -t commands command commands && ret=0 ;;\n    argument)\n  "
        "    case $words[1] in\n";
    for (const CommandModel& command : program.commands)
      text += fmt::format("        {}) _arguments -s{} && ret=0 ;;\n", command.name,
                          zsh_arguments(command, id, "          "));
    text += "      esac ;;\n  esac\n  return ret\n";
  }
  return text + fmt::format(
                    "}}\n\nif [[ $zsh_eval_context[-1] == loadautofunc ]]; then\n  _{0} \"$@\"\nelse\n  "
                    "compdef _{0} {1}\nfi\n",
                    id, program.name);
}

// ------------------------------------------------------------------------------------------------ fish

/// The arguments of fish's `complete` command for the option's value.
std::string fish_value(const OptionModel& option, const ConfigWords& words, const std::string& id) {
  switch (option.kind) {
    case ValueKind::none:
      return "";
    case ValueKind::choice:
      return fmt::format(" -x -a {}", shell_quoted(joined(option.choices), true));
    case ValueKind::file:
      return " -r -F";
    case ValueKind::folder:
      return " -x -a '(__fish_complete_directories)'";
    case ValueKind::config:
      return fmt::format(" -x -a '(__fish_complete_suffix .yaml) {}'", fmt::join(words.presets, " "));
    case ValueKind::assignment:
      return " -x -a '(__" + id + "_set)'";
    default:
      return " -x";
  }
}

std::string fish_options(const CommandModel& command, const std::string& begin, const ConfigWords& words,
                         const std::string& id) {
  std::string text;
  for (const OptionModel& option : command.options) {
    const std::string value = fish_value(option, words, id);
    if (option.positional) {
      if (option.kind == ValueKind::file) text += begin + " -F\n";
      continue;
    }
    text += begin;
    for (const std::string& name : option.names)
      text += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
    text += value + " -d " + shell_quoted(option.description, true) + "\n";
  }
  return text;
}

std::string fish_script(const CommandModel& program, const ConfigWords& words) {
  const std::string id = identifier(program.name);
  std::string text =
      fmt::format("# fish completion of {0}, written by `{0} --completion fish`\n", program.name);
  if (!words.keys.empty()) {
    text += fmt::format("function __{}_set\n", id);
    for (const KeyModel& key : words.keys) {
      const std::vector<std::string> values = key.values.empty() ? std::vector<std::string>{""} : key.values;
      for (const std::string& value : values)
        text += fmt::format("  printf '%s\\t%s\\n' {} {}\n", shell_quoted(key.path + "=" + value, true),
                            shell_quoted(key.meaning, true));
    }
    text += "end\n";
  }
  const std::string begin = "complete -c " + program.name;
  text += begin + " -f\n";
  const std::string names = joined(command_names(program));
  const std::string root =
      names.empty() ? begin : fmt::format("{} -n 'not __fish_seen_subcommand_from {}'", begin, names);
  text += fish_options(program, root, words, id);
  for (const CommandModel& command : program.commands) {
    text += fmt::format("{} -a {} -d {}\n", root, command.name, shell_quoted(command.description, true));
    text += fish_options(command, fmt::format("{} -n '__fish_seen_subcommand_from {}'", begin, command.name),
                         words, id);
  }
  return text;
}

}  // namespace

std::string completion_script(const CommandModel& program, const ConfigWords& words,
                              const std::string& shell) {
  if (shell == "bash") return bash_script(program, words);
  if (shell == "zsh") return zsh_script(program, words);
  if (shell == "fish") return fish_script(program, words);
  user_error("--completion {}: must be bash, zsh or fish", shell);
}

}  // namespace te::apps
