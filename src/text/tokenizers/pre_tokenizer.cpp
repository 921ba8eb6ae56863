// Definitions: Hugging Face tokenizers, pre_tokenizers and tokenizer/normalizer (SplitDelimiterBehavior).
#include "text/tokenizers/pre_tokenizer.h"

#include <algorithm>

#include "core/error.h"
#include "text/tokenizers/bounded_text.h"

namespace te::text {

namespace {

constexpr const char* kGpt2Regex =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace

PreTokenizer::PreTokenizer(const JsonReader& json) {
  if (json.is_null()) return;
  add_parts(json, "pretokenizers", steps_, [this](const std::string& type, const JsonReader& part) {
    if (byte_level_) part.fail("follows ByteLevel, which must be the last pre-tokenizer");
    add_part(type, part);
  });
}

void PreTokenizer::add_pattern(const std::string& regex, const std::string& where, Behavior behavior,
                               bool invert) {
  steps_.push_back({.split_by = SplitBy::kPattern,
                    .pattern = std::make_shared<const Pattern>(regex, where),
                    .behavior = behavior,
                    .invert = invert});
}

void PreTokenizer::add_set(const CodePointSet& set, Behavior behavior) {
  steps_.push_back({.split_by = SplitBy::kCharacters, .set = &set, .behavior = behavior});
}

void PreTokenizer::add_part(const std::string& type, const JsonReader& json) {
  if (type == "ByteLevel") {
    add_byte_level(json.at("add_prefix_space").boolean(), json.boolean_or("use_regex", true));
  } else if (type == "Split") {
    const JsonReader pattern = json.at("pattern");
    const auto text = pattern.find("String");
    if (text && text->string().empty()) text->fail("is empty; it must be a text to split at");
    const JsonReader regex = text ? *text : pattern.at("Regex");
    add_pattern(text ? escape_regex(text->string()) : regex.string(), regex.where(),
                read_behavior(json.at("behavior")), json.at("invert").boolean());
  } else if (type == "Whitespace") {
    steps_.push_back({.split_by = SplitBy::kWords, .behavior = Behavior::kRemoved, .invert = true});
  } else if (type == "WhitespaceSplit") {
    add_set(white_space_characters(), Behavior::kRemoved);
  } else if (type == "BertPreTokenizer") {
    add_set(white_space_characters(), Behavior::kRemoved);
    add_set(punctuation_characters(), Behavior::kIsolated);
  } else if (type == "Digits") {
    const bool individual = json.at("individual_digits").boolean();
    add_set(numeric_characters(), individual ? Behavior::kIsolated : Behavior::kContiguous);
  } else if (type == "Punctuation") {
    const auto behavior = json.find("behavior");
    add_set(punctuation_characters(), behavior ? read_behavior(*behavior) : Behavior::kIsolated);
  } else if (type == "Metaspace") {
    add_metaspace(json);
  } else if (type == "CharDelimiterSplit") {
    const JsonReader delimiter = json.at("delimiter");
    if (delimiter.string().empty()) delimiter.fail("is empty; it must be a character");
    add_pattern(escape_regex(delimiter.string()), delimiter.where(), Behavior::kRemoved);
  } else if (type == "FixedLength") {
    const int64_t length = json.at("length").integer();
    if (length < 1) json.fail(fmt::format("length {} must be at least 1", length));
    steps_.push_back({.split_by = SplitBy::kLengths, .length = static_cast<size_t>(length)});
  } else if (type == "UnicodeScripts") {
    steps_.push_back({.split_by = SplitBy::kScripts});
  } else {
    json.fail(fmt::format(
        "the pre-tokenizer {} is not supported (Sequence, Split, ByteLevel, Whitespace, WhitespaceSplit, "
        "BertPreTokenizer, Digits, Punctuation, Metaspace, CharDelimiterSplit, FixedLength and "
        "UnicodeScripts are)",
        shown(type)));
  }
}

std::optional<std::string_view> PreTokenizer::space_at_start() const {
  const auto found = std::ranges::find(steps_, Prepend::kFirst, &Step::prepend);
  if (found == steps_.end()) return {};
  return found->space;
}

void PreTokenizer::add_byte_level(bool add_prefix_space, bool use_regex) {
  Step step;
  if (use_regex) step.split_by = SplitBy::kPattern;
  if (use_regex) step.pattern = std::make_shared<const Pattern>(kGpt2Regex, "GPT-2's regular expression");
  if (add_prefix_space) step.prepend = Prepend::kAlways;
  step.space = " ";
  steps_.push_back(std::move(step));
  byte_level_ = true;
}

void PreTokenizer::add_metaspace(const JsonReader& json) {
  const JsonReader replacement = json.at("replacement");
  const std::string& space = replacement.string();
  if (space.empty() || utf8_sequence_length(space) != space.size()) replacement.fail("must be one character");
  const std::string scheme = json.string_or("prepend_scheme", "always");
  Step step{.behavior = Behavior::kMergedWithNext, .space = space, .replace_spaces = true};
  if (scheme == "always") {
    step.prepend = Prepend::kAlways;
  } else if (scheme == "first") {
    step.prepend = Prepend::kFirst;
  } else if (scheme != "never") {
    json.fail(fmt::format("prepend_scheme {} must be always, first or never", shown(scheme)));
  }
  if (!json.boolean_or("add_prefix_space", true)) {  // in older files
    if (step.prepend != Prepend::kNever && json.find("prepend_scheme")) {
      json.fail("add_prefix_space false contradicts prepend_scheme " + shown(scheme));
    }
    step.prepend = Prepend::kNever;
  }
  if (json.boolean_or("split", true)) {
    step.split_by = SplitBy::kPattern;
    step.pattern = std::make_shared<const Pattern>(escape_regex(space), json.where());
  }
  steps_.push_back(std::move(step));
}

PreTokenizer::Behavior PreTokenizer::read_behavior(const JsonReader& json) {
  const std::string& name = json.string();
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  json.fail(shown(name) + " must be Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

PreTokenizer::Span PreTokenizer::with_spaces(const Step& step, const Span& span, std::string& buffer) {
  const auto starts_with_space = [&] {
    return span.text.starts_with(step.space) || (step.replace_spaces && span.text[0] == ' ');
  };
  const bool prepend =
      (step.prepend == Prepend::kAlways || (step.prepend == Prepend::kFirst && span.at_start)) &&
      !starts_with_space();
  if (!prepend && !step.replace_spaces) return span;
  buffer.clear();
  if (prepend) buffer += step.space;
  if (step.replace_spaces) {
    append_replaced(span.text, " ", step.space, buffer);
  } else {
    buffer += span.text;
  }
  return {buffer, span.valid, span.at_start};
}

}  // namespace te::text
