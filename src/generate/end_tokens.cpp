#include "generate/end_tokens.h"

#include <array>
#include <limits>
#include <string>
#include <utility>

#include "generate/model_source.h"
#include "text/tokenizers/json_reader.h"

namespace te::generate {
namespace {

namespace fs = std::filesystem;

/// Ignores ids that no token can have; some configs use -1 for "none".
void add_id(const text::JsonReader& json, std::vector<int32_t>& ids) {
  const int64_t id = json.integer();
  if (id >= 0 && id <= std::numeric_limits<int32_t>::max()) ids.push_back(static_cast<int32_t>(id));
}

/// generation_config.json or, without it, config.json, with its content; an empty name if there is neither.
std::pair<std::string, nlohmann::json> read_generation_file(const fs::path& folder) {
  for (const char* name : {"generation_config.json", "config.json"}) {
    const std::string file = folder / name;
    if (!fs::is_regular_file(file)) continue;
    return {file,
            text::JsonReader::parse(text::read_tokenizer_file(file, "the end of generated text"), file)};
  }
  return {};
}

/// Keys with which transformers' generate() chooses other tokens, without sampling, and the number that has no effect.
constexpr std::array<std::pair<const char*, double>, 17> kUnusedKeys = {
    {{"bad_words_ids", -1},
     {"begin_suppress_tokens", -1},
     {"encoder_no_repeat_ngram_size", 0},
     {"encoder_repetition_penalty", 1},
     {"exponential_decay_length_penalty", -1},
     {"forced_bos_token_id", -1},
     {"forced_eos_token_id", -1},
     {"guidance_scale", 1},
     {"min_length", 0},
     {"min_new_tokens", 0},
     {"no_repeat_ngram_size", 0},
     {"num_beams", 1},
     {"repetition_penalty", 1},
     {"sequence_bias", -1},
     {"stop_strings", -1},
     {"suppress_tokens", -1},
     {"watermarking_config", -1}}};

}  // namespace

std::optional<EndTokens> read_end_tokens(const fs::path& folder) {
  const auto [file, value] = read_generation_file(folder);
  if (file.empty()) return std::nullopt;
  const auto eos = text::JsonReader(value, file).find("eos_token_id");
  if (!eos && !(value.is_object() && value.contains("eos_token_id")))
    return std::nullopt;  // find() skips null, too
  std::vector<int32_t> ids;
  if (eos && eos->value().is_array()) {
    for (size_t i = 0; i < eos->array().size(); ++i) add_id(eos->element(i), ids);
  } else if (eos) {
    add_id(*eos, ids);
  }
  return EndTokens(std::move(ids));
}

std::vector<std::string> unused_generation_keys(const fs::path& folder) {
  const auto [file, value] = read_generation_file(folder);
  std::vector<std::string> keys;
  if (!value.is_object()) return keys;
  for (const auto& [key, neutral] : kUnusedKeys) {
    const auto found = value.find(key);
    if (found == value.end() || found->is_null() || (found->is_structured() && found->empty())) continue;
    if (!found->is_number() || found->get<double>() != neutral) keys.emplace_back(key);
  }
  return keys;
}

EndTokens end_tokens(const text::Tokenizer& tokenizer) {
  const fs::path folder = text::tokenizer_folder(tokenizer.name());
  std::optional<EndTokens> ends;
  if (!folder.empty()) ends = read_end_tokens(folder);
  return ends ? *ends : EndTokens({tokenizer.end_of_document()});
}

EndTokens end_tokens(const ModelSource& source, const text::Tokenizer& tokenizer) {
  return source.end_tokens() ? *source.end_tokens() : end_tokens(tokenizer);
}

}  // namespace te::generate
