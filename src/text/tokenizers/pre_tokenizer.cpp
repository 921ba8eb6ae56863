// Definitions: Hugging Face tokenizers, pre_tokenizers and tokenizer/normalizer (SplitDelimiterBehavior).
#include "text/tokenizers/pre_tokenizer.h"

#include "core/error.h"
#include "text/tokenizers/normalizer.h"

namespace te::text {

namespace {

constexpr const char* kGpt2Regex =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr const char* kPunctuation = R"([!-/:-@\x{5b}-`\x{7b}-~\p{P}])";

}  // namespace

PreTokenizer::PreTokenizer(const JsonReader& json) {
  if (!json.is_null()) add(json, 0);
}

PreTokenizer PreTokenizer::gpt2() {
  PreTokenizer result;
  result.add_byte_level(false, true);
  return result;
}

void PreTokenizer::add(const JsonReader& json, int depth) {
  constexpr size_t kMost = 64;
  if (depth > 8 || steps_.size() >= kMost) json.fail("has too many parts");
  if (byte_level_) json.fail("stands behind ByteLevel, which must be the last pre-tokenizer");
  const std::string& type = json.at("type").string();
  if (type == "Sequence") {
    const JsonReader list = json.at("pretokenizers");
    for (size_t i = 0; i < list.array().size(); ++i) add(list.element(i), depth + 1);
  } else if (type == "ByteLevel") {
    add_byte_level(json.at("add_prefix_space").boolean(), json.boolean_or("use_regex", true));
  } else if (type == "Split") {
    const JsonReader pattern = json.at("pattern");
    const auto text = pattern.find("String");
    if (text && text->string().empty()) text->fail("is empty; it must be a text to split at");
    const JsonReader regex = text ? *text : pattern.at("Regex");
    steps_.push_back({.pattern = std::make_shared<const Pattern>(
                          text ? escape_regex(text->string()) : regex.string(), regex.where()),
                      .behavior = read_behavior(json.at("behavior")),
                      .invert = json.at("invert").boolean()});
  } else if (type == "Digits") {
    const bool individual = json.at("individual_digits").boolean();
    steps_.push_back({.pattern = std::make_shared<const Pattern>(R"(\p{N})", json.where()),
                      .behavior = individual ? Behavior::kIsolated : Behavior::kContiguous});
  } else if (type == "Punctuation") {
    const auto behavior = json.find("behavior");
    steps_.push_back({.pattern = std::make_shared<const Pattern>(kPunctuation, json.where()),
                      .behavior = behavior ? read_behavior(*behavior) : Behavior::kIsolated});
  } else if (type == "Metaspace") {
    add_metaspace(json);
  } else {
    json.fail(
        fmt::format("the pre-tokenizer {} is not supported (Sequence, Split, ByteLevel, Digits, Punctuation "
                    "and Metaspace are)",
                    shown(type)));
  }
}

void PreTokenizer::add_byte_level(bool add_prefix_space, bool use_regex) {
  Step step;
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
  if (!json.boolean_or("add_prefix_space", true)) step.prepend = Prepend::kNever;  // older files
  if (json.boolean_or("split", true)) {
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

PreTokenizer::Piece PreTokenizer::with_spaces(const Step& step, const Piece& piece, std::string& buffer) {
  const auto starts_with_space = [&] {
    return piece.text.starts_with(step.space) || (step.replace_spaces && piece.text[0] == ' ');
  };
  const bool prepend =
      (step.prepend == Prepend::kAlways || (step.prepend == Prepend::kFirst && piece.at_start)) &&
      !starts_with_space();
  if (!prepend && !step.replace_spaces) return piece;
  buffer.clear();
  if (prepend) buffer += step.space;
  if (step.replace_spaces) {
    append_replaced(piece.text, " ", step.space, buffer);
  } else {
    buffer += piece.text;
  }
  return {buffer, piece.valid, piece.at_start};
}

}  // namespace te::text
