// Parser of chat templates; chat_encode.cpp encodes conversations with them.
#include "text/chat/chat_template.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>

#include "core/error.h"
#include "core/file.h"
#include "text/chat/builtin_templates.h"

namespace te::text {

std::vector<std::string> ChatTemplate::builtin_names() {
  std::vector<std::string> names;
  for (const BuiltinTemplate& builtin : kBuiltinTemplates) names.emplace_back(builtin.name);
  return names;
}

ChatTemplate ChatTemplate::load(const std::string& spec) {
  for (const BuiltinTemplate& builtin : kBuiltinTemplates) {
    if (spec == builtin.name) return parse(spec, std::string(builtin.text));
  }
  const FileText file = read_file(spec, kMaxTextFileBytes, FileKind::input);
  if (file.missing) {
    user_error("chat template `{}`: neither a file nor one of {}; correct --template", spec,
               fmt::join(builtin_names(), ", "));
  }
  if (!file) user_error("chat template {}: cannot be read: {}; correct --template", spec, file.error);
  return parse(spec, file.text);
}

ChatTemplate ChatTemplate::parse(const std::string& name, const std::string& text) {
  ChatTemplate result;
  result.name_ = name;
  std::istringstream lines(text);
  std::string line;
  for (int64_t number = 1; std::getline(lines, line); ++number) {
    const std::string place = fmt::format("{}:{}", name, number);
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty() || line.starts_with('#')) continue;
    const size_t colon = line.find(':');
    if (colon == std::string::npos || colon == 0) {
      user_error(
          "{}: the line is not `ROLE: text`; see docs/how-to/chat-templates.md for the syntax of chat "
          "templates",
          place);
    }
    const std::string role = line.substr(0, colon);
    std::string_view rest = std::string_view(line).substr(colon + 1);
    if (rest.starts_with(' ')) rest.remove_prefix(1);
    if (role == "trim") {
      if (rest != "true" && rest != "false") user_error("{}: trim must be true or false", place);
      result.trim_ = rest == "true";
    } else if (!result.lines_.emplace(role, result.parse_line(place, role, rest)).second) {
      user_error("{}: a second line for the role `{}`; each role must have one line", place, role);
    }
  }
  result.check(name);
  return result;
}

ChatTemplate::Line ChatTemplate::parse_line(const std::string& place, std::string_view role,
                                            std::string_view text) const {
  Line line;
  const auto literal = [&](char c) {
    if (line.empty() || line.back().kind != Kind::kText) line.push_back({Kind::kText, ""});
    line.back().text += c;
  };
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\\') {
      const char next = i + 1 < text.size() ? text[++i] : ' ';
      if (std::string_view("nt\\{}").find(next) == std::string_view::npos) {
        user_error("{}: unknown escape `\\{}`; use \\n, \\t, \\\\, \\{{ or \\}}", place, next);
      }
      literal(next == 'n' ? '\n' : next == 't' ? '\t' : next);
    } else if (c == '{') {
      const size_t end = text.find('}', i);
      if (end == std::string_view::npos || end == i + 1) {
        user_error("{}: `{{` must be followed by a name and `}}`; write \\{{ for a literal brace", place);
      }
      const std::string name(text.substr(i + 1, end - i - 1));
      static const std::map<std::string, Kind> kNames = {
          {"content", Kind::kContent}, {"context", Kind::kContext}, {"system", Kind::kSystem},
          {"stop", Kind::kStop},       {"bos", Kind::kBegin},       {"eos", Kind::kEnd}};
      const auto known = kNames.find(name);
      line.push_back({known != kNames.end() ? known->second : Kind::kToken, name});
      i = end;
    } else if (c == '}') {
      user_error("{}: `}}` without `{{` before it; write \\}} for a literal brace", place);
    } else {
      literal(c);
    }
  }
  const auto count = [&](Kind kind) {
    return std::ranges::count_if(line, [&](const Part& part) { return part.kind == kind; });
  };
  if (count(Kind::kContent) != (role == "begin" ? 0 : 1)) {
    user_error("{}: `{}` must have {} {{content}}", place, role, role == "begin" ? "no" : "one");
  }
  const bool user = role == "user" || role == "user_with_context";
  if ((count(Kind::kStop) > 0 && role != "assistant") || (count(Kind::kSystem) > 0 && !user) ||
      (count(Kind::kContext) > 0 && role != "user_with_context")) {
    user_error(
        "{}: {{stop}} is allowed for assistant only, {{system}} for user, {{context}} for user_with_context",
        place);
  }
  return line;
}

void ChatTemplate::check(const std::string& place) {
  for (const char* role : {"user", "assistant"}) {
    if (!lines_.contains(role))
      user_error("{}: has no line `{}:`; every chat template needs one", place, role);
  }
  const auto has = [&](const Line& line, Kind kind) {
    return std::ranges::any_of(line, [&](const Part& part) { return part.kind == kind; });
  };
  system_inside_user_ = has(lines_.at("user"), Kind::kSystem);
  const auto with_context = lines_.find("user_with_context");
  if (with_context != lines_.end() && has(with_context->second, Kind::kSystem) != system_inside_user_) {
    user_error("{}: {{system}} must be in both user and user_with_context, or in neither", place);
  }
  if (with_context != lines_.end() && !has(with_context->second, Kind::kContext)) {
    user_error("{}: user_with_context has no {{context}}", place);
  }
  if (system_inside_user_ && !lines_.contains("system")) {
    user_error("{}: user has {{system}}, but there is no line `system:`", place);
  }
  const Line& assistant = lines_.at("assistant");
  const auto at = [&](Kind kind) { return std::ranges::find(assistant, kind, &Part::kind); };
  if (at(Kind::kStop) < at(Kind::kContent)) user_error("{}: {{stop}} comes before {{content}}", place);
}

std::vector<std::string> ChatTemplate::token_names() const {
  std::vector<std::string> names;
  for (const auto& [role, line] : lines_) {
    for (const Part& part : line) {
      const bool known = std::ranges::find(names, part.text) != names.end();
      if (part.kind == Kind::kToken && !known) names.push_back(part.text);
    }
  }
  return names;
}

}  // namespace te::text
