// Chooses the begin- and end-of-document tokens.
#include "core/error.h"
#include "text/tokenizers/tokenizer_files.h"
#include "text/tokenizers/utf8.h"

namespace te::text {

namespace {

/// The token that a file names for `key`. UserError if the vocabulary lacks it.
std::optional<int32_t> stated_token(const Tokenizer& tokenizer, const TokenizerSettings& settings,
                                    const char* key) {
  const auto stated = settings.special.find(key);
  if (stated == settings.special.end() || !stated->second) return {};
  if (const auto id = tokenizer.find_token(stated->second->content)) return id;
  user_error("tokenizer {}: {} {} of tokenizer_config.json is not in the vocabulary; correct it there",
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
        "tokenizer {}: eos_token_id {} of generation_config.json is not below the vocabulary size {}; "
        "correct it there",
        tokenizer.name(), *id, tokenizer.vocab_size());
  }
  if (model_end) return *model_end;
  const std::initializer_list<const char*> known = {"<|endoftext|>", "</s>", "<|end_of_text|>", "<|im_end|>",
                                                    "<eos>"};
  if (const auto id = first_of(known, find_special)) return *id;
  // Without settings, fall back to an ordinary token with one of these names.
  const auto find_any = [&](const char* token) { return tokenizer.find_token(token); };
  if (const auto id = settings.has_config ? std::nullopt : first_of(known, find_any)) return *id;
  user_error(
      "tokenizer {}: no known end-of-document token; add a tokenizer_config.json that names it as "
      "eos_token to the same folder",
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
