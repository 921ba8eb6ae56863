#include "generate/begin_token.h"

#include <filesystem>
#include <optional>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"

namespace te::generate {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

json read_json(const fs::path& file) {
  const FileText read = read_file(file);
  if (!read) user_error("{}: cannot be read: {}", file.string(), read.error);
  json value = try_parse_json(read.text);
  if (value.is_discarded()) user_error("{}: is not valid JSON; download it again", file.string());
  return value;
}

/// True if the template of a post-processor starts with a special token; in a sequence of post-processors, the first
/// one with a template decides. Empty without a template.
std::optional<bool> template_begins(const json& processor) {
  if (!processor.is_object()) return {};
  const std::string type = processor.value("type", "");
  if (type == "TemplateProcessing") {
    const json single = processor.value("single", json::array());
    return single.is_array() && !single.empty() && single[0].is_object() &&
           single[0].contains("SpecialToken");
  }
  if (type == "Sequence" && processor.contains("processors") && processor["processors"].is_array()) {
    for (const json& inner : processor["processors"])
      if (const auto begins = template_begins(inner)) return begins;
  }
  return {};
}

}  // namespace

bool adds_begin_of_document(const text::Tokenizer& tokenizer) {
  if (!tokenizer.begin_of_document()) return false;
  const fs::path spec(tokenizer.name());
  const bool folder = fs::is_directory(spec);
  const fs::path config_file = text::tokenizer_folder(tokenizer.name()) / "tokenizer_config.json";
  if (fs::is_regular_file(config_file)) {
    const json config = read_json(config_file);
    if (config.is_object() && config.contains("add_bos_token") && config["add_bos_token"].is_boolean())
      return config["add_bos_token"].get<bool>();
  }
  // The file that text::make_tokenizer uses.
  const fs::path json_file = folder ? spec / "tokenizer.json" : spec;
  if (fs::is_regular_file(json_file) && json_file.extension() == ".json") {
    const json definition = read_json(json_file);
    return definition.is_object() && definition.contains("post_processor") &&
           template_begins(definition["post_processor"]).value_or(false);
  }
  const bool words = folder && (fs::exists(spec / "vocab.json") || fs::exists(spec / "encoder.json"));
  return !words && (spec.extension() == ".model" || (folder && fs::exists(spec / "tokenizer.model")));
}

}  // namespace te::generate
