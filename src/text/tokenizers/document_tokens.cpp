// Which tokens begin and end a document.
#include "core/error.h"
#include "text/tokenizers/tokenizer_files.h"
#include "text/tokenizers/utf8.h"

namespace te::text {

namespace {

/// The token that a file names for `key`. UserError when the vocabulary lacks it.
std::optional<int32_t> stated_token(const Tokenizer& tokenizer, const TokenizerSettings& settings,
                                    const char* key) {
  const auto stated = settings.special.find(key);
  if (stated == settings.special.end() || !stated->second) return {};
  if (const auto id = tokenizer.find_token(stated->second->content)) return id;
  user_error("tokenizer {}: the {} {} of tokenizer_config.json is not in the vocabulary; correct it there",
             tokenizer.name(), key, shown(stated->second->content));
}

bool is_null(const TokenizerSettings& settings, const char* key) {
  const auto stated = settings.special.find(key);
  return stated != settings.special.end() && !stated->second;
}

std::optional<int32_t> class_token(const Tokenizer& tokenizer, const TokenizerSettings& settings,
                                   const char* key) {
  const auto name = default_token(settings, key);
  return name && !is_null(settings, key) ? tokenizer.find_token(*name) : std::nullopt;
}

std::optional<int32_t> first_of(std::initializer_list<const char*> names, const FindToken& find) {
  for (const char* name : names) {
    if (const auto id = find(name)) return id;
  }
  return {};
}

}  // namespace

int32_t choose_end_of_document(const Tokenizer& tokenizer, const TokenizerSettings& settings,
                               std::optional<int32_t> model_end, const FindToken& find_special) {
  if (const auto id = stated_token(tokenizer, settings, "eos_token")) return *id;
  if (const auto id = class_token(tokenizer, settings, "eos_token")) return *id;
  if (const auto id = settings.generation_end) {
    if (*id >= 0 && *id < tokenizer.vocab_size()) return static_cast<int32_t>(*id);
    user_error(
        "tokenizer {}: the eos_token_id {} of generation_config.json is not below the vocabulary's {}; "
        "correct it there",
        tokenizer.name(), *id, tokenizer.vocab_size());
  }
  if (model_end) return *model_end;
  const std::initializer_list<const char*> known = {"<|endoftext|>", "</s>", "<|end_of_text|>", "<|im_end|>",
                                                    "<eos>"};
  if (const auto id = first_of(known, find_special)) return *id;
  // Without any settings an ordinary token of such a name is the best that there is.
  const auto find_any = [&](const char* token) { return tokenizer.find_token(token); };
  if (const auto id = settings.has_config ? std::nullopt : first_of(known, find_any)) return *id;
  user_error(
      "tokenizer {}: has no known end-of-document token; put a tokenizer_config.json with its name as "
      "eos_token next to it",
      tokenizer.name());
}

std::optional<int32_t> choose_begin_of_document(const Tokenizer& tokenizer, const TokenizerSettings& settings,
                                                std::optional<int32_t> model_begin,
                                                const FindToken& find_special) {
  if (const auto id = stated_token(tokenizer, settings, "bos_token")) return id;
  if (is_null(settings, "bos_token")) return {};
  if (const auto id = class_token(tokenizer, settings, "bos_token")) return id;
  if (model_begin) return model_begin;
  if (settings.has_config || settings.tokenizer_class == "Qwen2Tokenizer") return {};
  return first_of({"<s>", "<|begin_of_text|>", "<bos>"}, find_special);
}

}  // namespace te::text
