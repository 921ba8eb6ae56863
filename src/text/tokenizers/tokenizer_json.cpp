// Reads tokenizer.json and GPT-2's two files.
#include <utility>
#include <variant>

#include "core/error.h"
#include "core/log.h"
#include "text/tokenizers/model_json.h"
#include "text/tokenizers/tokenizer_files.h"
#include "text/tokenizers/utf8.h"

namespace te::text {

PipelineSpec read_tokenizer_json(const std::string& text, const std::string& name,
                                 std::optional<bool> add_prefix_space) {
  const std::string where = "tokenizer " + name;
  nlohmann::json value = JsonReader::parse(text, where);
  const nlohmann::json null;
  const JsonReader json(value, where);
  if (const auto words = json.find("pre_tokenizer");
      add_prefix_space && words && words->at("type").string() == "ByteLevel") {
    if (words->boolean_or("add_prefix_space", *add_prefix_space) != *add_prefix_space)
      log_warning(
          "{}: add_prefix_space is {}, but {} in tokenizer_config.json, which is used, as in transformers 4; "
          "transformers 5 may use the former",
          where, !*add_prefix_space, *add_prefix_space);
    value["pre_tokenizer"]["add_prefix_space"] = *add_prefix_space;
  }
  const JsonReader nothing(null, where);
  const JsonReader model(json.at("model").value(), where + ": model");
  const auto part = [&](const char* key) {
    return JsonReader(json.find(key).value_or(nothing).value(), fmt::format("{}: {}", where, key));
  };
  PipelineSpec spec{.model = read_model(model),
                    .added_tokens = {},
                    .normalizer = Normalizer(part("normalizer")),
                    .pre_tokenizer = PreTokenizer(part("pre_tokenizer")),
                    .decoder = Decoder(part("decoder"))};
  if (spec.pre_tokenizer.byte_level()) {
    auto* bpe = std::get_if<BpeSpec>(&spec.model);
    if (bpe == nullptr || bpe->byte_fallback) {
      model.fail("the pre-tokenizer ByteLevel is supported for BPE without byte_fallback only");
    }
    bpe->byte_level = true;
  }
  if (const auto space = spec.pre_tokenizer.space_at_start(); space && !spec.normalizer.keeps_start(*space)) {
    part("normalizer")
        .fail(
            "can change the first character of a text, which is not supported together with a Metaspace "
            "whose prepend_scheme is first");
  }
  for (const char* key : {"truncation", "padding"}) {
    if (!part(key).is_null()) {
      log_warning("{}: `{}` is ignored: documents are encoded completely and without padding", where, key);
    }
  }
  if (const JsonReader added = part("added_tokens"); !added.is_null()) {
    for (size_t i = 0; i < added.array().size(); ++i) {
      const JsonReader token = added.element(i);
      spec.added_tokens.push_back(read_added_token(token));
      spec.added_tokens.back().id = token.at("id").integer();
    }
  }
  return spec;
}

namespace {

/// Sets the pre-tokenizer and the normalizer of the tokenizer class of the two files.
void set_words(PipelineSpec& spec, const TokenizerSettings& settings, const std::string& where) {
  using nlohmann::json;
  const std::string& name = settings.tokenizer_class;
  json words = {{"type", "ByteLevel"},
                {"add_prefix_space", settings.add_prefix_space.value_or(false)},
                {"use_regex", name != "Qwen2Tokenizer"}};
  if (name == "Qwen2Tokenizer") {
    constexpr const char* kWords =
        R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
    const json split = {
        {"type", "Split"}, {"pattern", {{"Regex", kWords}}}, {"behavior", "Isolated"}, {"invert", false}};
    words = {{"type", "Sequence"}, {"pretokenizers", {split, words}}};
    const json composed = {{"type", "NFC"}};
    spec.normalizer = Normalizer(JsonReader(composed, where));
  } else if (!name.empty() && name != "GPT2Tokenizer" && name != "RobertaTokenizer" &&
             name != "BartTokenizer" && name != "CodeGenTokenizer" && name != "PreTrainedTokenizer") {
    user_error(
        "{}: its class is {}, which vocab.json and merges.txt do not define completely (GPT2Tokenizer and "
        "Qwen2Tokenizer are supported); use the tokenizer.json of the same model",
        where, shown(name));
  }
  spec.pre_tokenizer = PreTokenizer(JsonReader(words, where));
}

}  // namespace

PipelineSpec read_gpt2_files(const std::string& vocab, const std::string& merges,
                             const TokenizerSettings& settings, const std::string& name) {
  const std::string where = "tokenizer " + name;
  const nlohmann::json value = JsonReader::parse(vocab, where + ": the vocabulary");
  BpeSpec model;
  read_token_ids(JsonReader(value, where + ": the vocabulary"), model.vocab);
  model.byte_level = true;
  const nlohmann::json none;
  PipelineSpec spec{.model = {},
                    .added_tokens = {},
                    .normalizer = Normalizer(JsonReader(none, where)),
                    .pre_tokenizer = PreTokenizer(JsonReader(none, where)),
                    .decoder = Decoder::byte_level()};
  set_words(spec, settings, where);
  std::string_view rest = merges;
  for (size_t line = 1; !rest.empty(); ++line) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view text = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (text.ends_with('\r')) text.remove_suffix(1);
    if (text.starts_with("#version") || (text.empty() && rest.empty())) continue;
    model.merges.push_back(split_merge(text, fmt::format("{}: line {} of the merges", where, line)));
  }
  constexpr const char* kEndOfText = "<|endoftext|>";
  if (const auto found = value.find(kEndOfText); found != value.end()) {
    spec.added_tokens.push_back(
        {.content = kEndOfText, .id = found->get<int64_t>(), .normalized = false, .special = true});
  }
  spec.model = std::move(model);
  return spec;
}

}  // namespace te::text
