#include "text/chat/chat_turns.h"

#include <zlib.h>

#include <algorithm>
#include <map>

#include "core/error.h"
#include "text/tokenizers/normalizer_step.h"
#include "text/tokenizers/utf8.h"

namespace te::text {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFormat = "te-train chat turns 1", kReasoningEnd = "</think>";

std::string crc32_of(const std::string& text) {
  const auto value = ::crc32(0, reinterpret_cast<const Bytef*>(text.data()), static_cast<uInt>(text.size()));
  return fmt::format("crc32:{:08x}", value);
}

/// The text with line feeds in place of other line ends, as Python reads a file.
std::string with_line_feeds(const std::string& text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\r')
      result += text[i];
    else if (i + 1 == text.size() || text[i + 1] != '\n')
      result += '\n';
  }
  return result;
}

/// Looks up the string of `json` in `known`. UserError for an unknown name.
template <class Value>
Value named(const JsonReader& json, const std::map<std::string, Value>& known) {
  const auto found = known.find(json.string());
  if (found == known.end()) json.fail(shown(json.string()) + " is unknown; run scripts/chat_turns.py again");
  return found->second;
}

}  // namespace

ChatTurns::Part ChatTurns::read_part(const JsonReader& json) {
  if (const auto text = json.find("text")) return {.text = text->string()};
  static const std::map<std::string, Trim> kTrims = {
      {"none", Trim::kNone}, {"left", Trim::kLeft}, {"right", Trim::kRight}, {"both", Trim::kBoth}};
  static const std::map<std::string, Reasoning> kReasonings = {{"keep", Reasoning::kKeep},
                                                               {"drop", Reasoning::kDrop},
                                                               {"drop_lines", Reasoning::kDropLines},
                                                               {"drop_all_lines", Reasoning::kDropAllLines}};
  static const std::map<std::string, std::string> kRoles = {
      {"system", "system"}, {"user", "user"}, {"assistant", "assistant"}};
  Part part{.text = named(json.at("message"), kRoles), .is_message = true};
  part.trim = named(json.at("trim"), kTrims);
  if (const auto reasoning = json.find("reasoning")) part.reasoning = named(*reasoning, kReasonings);
  return part;
}

ChatTurns::Units ChatTurns::read_units(const JsonReader& json) {
  constexpr std::array<const char*, 4> kNames = {"only", "first", "middle", "last"};
  Units units;
  for (size_t i = 0; i < units.size(); ++i) {
    const JsonReader list = json.at(kNames[i]);
    for (size_t k = 0; k < list.array().size(); ++k) units[i].push_back(read_part(list.element(k)));
    const bool has_user = std::ranges::any_of(
        units[i], [](const Part& part) { return part.is_message && part.text == "user"; });
    if (!has_user) list.fail("has no user message; run scripts/chat_turns.py again");
  }
  return units;
}

ChatTurns ChatTurns::parse(const std::string& text, const std::string& place) {
  const nlohmann::json value = JsonReader::parse(text, place);
  const JsonReader json(value, place);
  if (json.at("format").string() != kFormat)
    json.fail(fmt::format("`format` is {}, not {}; run scripts/chat_turns.py again",
                          shown(json.at("format").string()), shown(kFormat)));
  ChatTurns turns;
  turns.place_ = place;
  turns.source_ = json.at("template").string();
  if (const auto end = json.find("end")) turns.end_ = end->string();
  const JsonReader tokens = json.at("tokens");
  for (size_t i = 0; i < tokens.array().size(); ++i) turns.tokens_.push_back(tokens.element(i).string());
  turns.without_system_ = read_units(json.at("without_system"));
  if (const auto units = json.find("with_system")) turns.with_system_ = read_units(*units);
  return turns;
}

ChatTurns ChatTurns::load(const std::string& file) {
  return parse(read_tokenizer_file(file, "--template"), file);
}

void ChatTurns::check(const Tokenizer& tokenizer) const {
  std::vector<std::string> names = tokens_;
  if (end_) names.push_back(*end_);
  for (const std::string& name : names) {
    std::vector<int32_t> tokens;
    tokenizer.encode(name, tokens);
    if (tokens.size() != 1)
      user_error(
          "{}: the tokenizer {} encodes the special token {} as {} tokens; use the tokenizer.json of the "
          "model (a tokenizer.model does not match special tokens in text)",
          place_, tokenizer.name(), shown(name), tokens.size());
  }
}

int32_t ChatTurns::end(const Tokenizer& tokenizer) const {
  if (!end_) return -1;
  std::vector<int32_t> tokens;
  tokenizer.encode(*end_, tokens);
  TE_CHECK(tokens.size() == 1, "{}: {} is encoded as {} tokens", place_, *end_, tokens.size());
  return tokens[0];
}

std::string ChatTurns::render(const std::string& message, const Part& part) {
  std::string_view text = message;
  const size_t reasoning_end = text.rfind(kReasoningEnd);
  const bool has_reasoning = reasoning_end != std::string_view::npos;
  if (part.reasoning != Reasoning::kKeep && has_reasoning)
    text.remove_prefix(reasoning_end + kReasoningEnd.size());
  const bool drop_lines = part.reasoning == Reasoning::kDropAllLines ||
                          (part.reasoning == Reasoning::kDropLines && has_reasoning);
  if (drop_lines) text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
  return std::string(stripped(text, part.trim == Trim::kLeft || part.trim == Trim::kBoth,
                              part.trim == Trim::kRight || part.trim == Trim::kBoth, is_python_space));
}

std::vector<std::pair<std::string, bool>> ChatTurns::parts_of(const Conversation& conversation) const {
  const bool has_system = !conversation.empty() && conversation.front().role == "system";
  if (has_system && !with_system_)
    user_error("{}: the model's chat template does not support system messages; leave out --system", place_);
  const Units& units = has_system ? *with_system_ : without_system_;
  const size_t begin = has_system ? 1 : 0;
  std::vector<std::pair<std::string, bool>> parts;
  for (size_t at = begin; at < conversation.size(); at += 2) {
    const bool first = at == begin, last = at + 1 == conversation.size();
    TE_CHECK(conversation[at].role == "user" && (last || conversation[at + 1].role == "assistant"),
             "message {} of the conversation has the role `{}`", at, conversation[at].role);
    const Unit unit = first ? (last ? Unit::kOnly : Unit::kFirst) : (last ? Unit::kLast : Unit::kMiddle);
    for (const Part& part : units[static_cast<size_t>(unit)]) {
      if (!part.is_message) {
        parts.emplace_back(part.text, false);
        continue;
      }
      const size_t index = part.text == "system" ? 0 : part.text == "user" ? at : at + 1;
      if (index >= conversation.size())
        user_error("{}: the unit `only` or `last` contains the reply; run scripts/chat_turns.py again",
                   place_);
      if (part.text == "system" && !has_system)
        user_error("{}: `without_system` has a system message; run scripts/chat_turns.py again", place_);
      parts.emplace_back(render(conversation[index].content, part), true);
    }
  }
  return parts;
}

std::string ChatTurns::text(const Conversation& conversation) const {
  std::string text;
  for (const auto& part : parts_of(conversation)) text += part.first;
  return text;
}

std::vector<int32_t> ChatTurns::encode(const Conversation& conversation, const Tokenizer& tokenizer) const {
  std::vector<int32_t> result, matched, plain;
  std::string joint;  // text that is encoded in one call
  const auto flush = [&] {
    if (!joint.empty()) tokenizer.encode(joint, result);
    joint.clear();
  };
  for (const auto& [text, is_message] : parts_of(conversation)) {
    matched.clear();
    plain.clear();
    if (is_message) {
      tokenizer.encode(text, matched);
      tokenizer.encode(text, plain, SpecialTokens::kAsText);
    }
    if (matched == plain) {
      joint += text;
    } else {  // the message contains the name of a special token, which is plain text: encode it separately
      flush();
      result.insert(result.end(), plain.begin(), plain.end());
    }
  }
  flush();
  return result;
}

std::optional<std::string> find_jinja_template(const fs::path& folder) {
  const std::string where = "the chat template";
  if (const fs::path file = folder / "chat_template.jinja"; fs::is_regular_file(file))
    return with_line_feeds(read_tokenizer_file(file, where));
  for (const char* name : {"chat_template.json", "tokenizer_config.json"}) {
    const fs::path file = folder / name;
    if (!fs::is_regular_file(file)) continue;
    const nlohmann::json value = JsonReader::parse(read_tokenizer_file(file, where), file.string());
    const auto found = JsonReader(value, file.string()).find("chat_template");
    if (!found) continue;
    if (found->value().is_string()) return found->string();
    for (size_t i = 0; i < found->array().size(); ++i) {
      const JsonReader item = found->element(i);
      if (item.at("name").string() == "default") return item.at("template").string();
    }
  }
  return {};
}

std::optional<ChatTurns> find_chat_turns(const fs::path& folder) {
  const std::optional<std::string> jinja = find_jinja_template(folder);
  const fs::path file = folder / ChatTurns::kFile;
  if (!fs::is_regular_file(file)) {
    if (!jinja) return {};
    user_error(
        "{}: the model's chat template is in Jinja, which te-generate does not support; run "
        "scripts/chat_turns.py {} once, which converts it, or give --template",
        folder.string(), folder.string());
  }
  ChatTurns turns = ChatTurns::load(file);
  if (jinja && crc32_of(*jinja) != turns.source())
    user_error("{}: does not match the chat template in the same folder; run scripts/chat_turns.py {} again",
               file.string(), folder.string());
  return turns;
}

}  // namespace te::text
