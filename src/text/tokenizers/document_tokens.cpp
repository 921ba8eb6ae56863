// Which tokens begin and end a document.
#include <filesystem>

#include "core/error.h"
#include "text/tokenizers/tokenizer_files.h"
#include "text/tokenizers/utf8.h"

namespace te::text {

namespace {

namespace fs = std::filesystem;

/// A token in tokenizer_config.json: its name, or an object with the name as `content`.
std::optional<std::string> token_name(const JsonReader& config, const char* key) {
  const auto token = config.find(key);
  if (!token) return {};
  return token->value().is_object() ? token->at("content").string() : token->string();
}

std::optional<int32_t> first_known(const Tokenizer& tokenizer, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (const auto id = tokenizer.find_token(name)) return id;
  }
  return {};
}

}  // namespace

DocumentTokenNames read_document_token_names(const std::string& folder, const std::string& name) {
  DocumentTokenNames result;
  const auto read = [&](const char* file, auto on_json) {
    const fs::path path = fs::path(folder) / file;
    if (!fs::is_regular_file(path)) return;
    const std::string where = fmt::format("tokenizer {}: {}", name, path.string());
    const nlohmann::json value = JsonReader::parse(read_tokenizer_file(path, "tokenizer " + name), where);
    on_json(JsonReader(value, where));
  };
  read("tokenizer_config.json", [&](const JsonReader& json) {
    result.end = token_name(json, "eos_token");
    result.begin = token_name(json, "bos_token");
  });
  read("generation_config.json", [&](const JsonReader& json) {
    const auto id = json.find("eos_token_id");
    if (!id) return;
    if (!id->value().is_array()) {
      result.end_id = id->integer();
    } else if (!id->value().empty()) {
      result.end_id = id->element(0).integer();
    }
  });
  return result;
}

int32_t choose_end_of_document(const Tokenizer& tokenizer, const DocumentTokenNames& names,
                               std::optional<int32_t> model_end) {
  if (names.end) {
    if (const auto id = tokenizer.find_token(*names.end)) return *id;
    user_error(
        "tokenizer {}: the eos_token {} of tokenizer_config.json is not in the vocabulary; correct it there",
        tokenizer.name(), shown(*names.end));
  }
  if (names.end_id) {
    if (*names.end_id >= 0 && *names.end_id < tokenizer.vocab_size())
      return static_cast<int32_t>(*names.end_id);
    user_error(
        "tokenizer {}: the eos_token_id {} of generation_config.json is not below the vocabulary's {}; "
        "correct it there",
        tokenizer.name(), *names.end_id, tokenizer.vocab_size());
  }
  if (model_end) return *model_end;
  if (const auto id =
          first_known(tokenizer, {"<|endoftext|>", "</s>", "<|end_of_text|>", "<|im_end|>", "<eos>"})) {
    return *id;
  }
  user_error(
      "tokenizer {}: has no known end-of-document token; put a tokenizer_config.json with its name as "
      "eos_token beside it",
      tokenizer.name());
}

std::optional<int32_t> choose_begin_of_document(const Tokenizer& tokenizer, const DocumentTokenNames& names,
                                                std::optional<int32_t> model_begin) {
  if (names.begin) {
    if (const auto id = tokenizer.find_token(*names.begin)) return id;
  }
  return model_begin ? model_begin : first_known(tokenizer, {"<s>", "<|begin_of_text|>", "<bos>"});
}

}  // namespace te::text
