#include "generate/end_tokens.h"

#include <limits>
#include <optional>

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

EndTokens read_end_tokens(const fs::path& folder) {
  for (const char* name : {"generation_config.json", "config.json"}) {
    const fs::path file = folder / name;
    if (!fs::is_regular_file(file)) continue;
    const nlohmann::json value =
        text::JsonReader::parse(text::read_tokenizer_file(file, "the end of generated text"), file.string());
    const auto eos = text::JsonReader(value, file.string()).find("eos_token_id");
    std::vector<int32_t> ids;
    if (eos && eos->value().is_array()) {
      for (size_t i = 0; i < eos->array().size(); ++i) add_id(eos->element(i), ids);
    } else if (eos) {
      add_id(*eos, ids);
    }
    return EndTokens(std::move(ids));
  }
  return {};
}

EndTokens end_tokens(const text::Tokenizer& tokenizer) {
  const fs::path folder = text::tokenizer_folder(tokenizer.name());
  EndTokens ends = folder.empty() ? EndTokens() : read_end_tokens(folder);
  return ends.empty() ? EndTokens({tokenizer.end_of_document()}) : ends;
}

EndTokens end_tokens(const ModelSource& source, const text::Tokenizer& tokenizer) {
  return source.end_tokens().empty() ? end_tokens(tokenizer) : source.end_tokens();
}

}  // namespace te::generate
