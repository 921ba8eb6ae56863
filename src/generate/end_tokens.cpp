#include "generate/end_tokens.h"

#include <limits>

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

}  // namespace

std::optional<EndTokens> read_end_tokens(const fs::path& folder) {
  for (const char* name : {"generation_config.json", "config.json"}) {
    const fs::path file = folder / name;
    if (!fs::is_regular_file(file)) continue;
    const nlohmann::json value =
        text::JsonReader::parse(text::read_tokenizer_file(file, "the end of generated text"), file.string());
    const auto eos = text::JsonReader(value, file.string()).find("eos_token_id");
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
  return std::nullopt;
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
