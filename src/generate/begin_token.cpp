#include "generate/begin_token.h"

#include <filesystem>
#include <optional>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/log.h"
#include "text/tokenizers/utf8.h"

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

/// The special token that a post-processor puts before a text, or "" if it puts none there; in a sequence of
/// post-processors, the first one with a template decides. Empty without a template.
std::optional<std::string> first_of_template(const json& processor) {
  if (!processor.is_object()) return {};
  const std::string type = processor.value("type", "");
  if (type == "TemplateProcessing") {
    const json single = processor.value("single", json::array());
    const bool special = single.is_array() && !single.empty() && single[0].is_object() &&
                         single[0].contains("SpecialToken") && single[0]["SpecialToken"].is_object();
    return special ? single[0]["SpecialToken"].value("id", "") : "";
  }
  if (type == "BertProcessing" || type == "RobertaProcessing") {
    const json cls = processor.value("cls", json::array());
    return cls.is_array() && !cls.empty() && cls[0].is_string() ? cls[0].get<std::string>() : "";
  }
  if (type == "Sequence" && processor.contains("processors") && processor["processors"].is_array()) {
    for (const json& inner : processor["processors"])
      if (const auto first = first_of_template(inner)) return first;
  }
  return {};
}

/// True if the post-processor of tokenizer.json puts the begin-of-document token before a text. UserError if it puts
/// another token there.
bool template_begins(const text::Tokenizer& tokenizer, const fs::path& file) {
  const json definition = read_json(file);
  if (!definition.is_object() || !definition.contains("post_processor")) return false;
  const std::string first = first_of_template(definition["post_processor"]).value_or("");
  const auto begin = tokenizer.begin_of_document();
  if (!first.empty() && (!begin || tokenizer.find_token(first) != begin))
    user_error(
        "{}: the post_processor puts {} before a text, which is not the tokenizer's bos_token; make it the "
        "bos_token of tokenizer_config.json",
        file.string(), text::shown(first));
  return !first.empty();
}

}  // namespace

bool adds_begin_of_document(const text::Tokenizer& tokenizer) {
  const fs::path spec(tokenizer.name());
  const bool folder = fs::is_directory(spec);
  // The file that text::make_tokenizer uses.
  const fs::path json_file = folder ? spec / "tokenizer.json" : spec;
  const bool has_json = fs::is_regular_file(json_file) && json_file.extension() == ".json" &&
                        json_file.filename() != "vocab.json" && json_file.filename() != "encoder.json";
  const fs::path config_file = text::tokenizer_folder(tokenizer.name()) / "tokenizer_config.json";
  if (tokenizer.begin_of_document() && fs::is_regular_file(config_file)) {
    const json config = read_json(config_file);
    if (config.is_object() && config.contains("add_bos_token") && config["add_bos_token"].is_boolean()) {
      const bool adds = config["add_bos_token"].get<bool>();
      if (has_json && template_begins(tokenizer, json_file) != adds)
        log_warning(
            "{}: add_bos_token is {}, but the post_processor of tokenizer.json says the opposite; the former "
            "is "
            "used, as in transformers 4; transformers 5 uses the latter",
            config_file.string(), adds);
      return adds;
    }
  }
  if (has_json) return template_begins(tokenizer, json_file);
  if (!tokenizer.begin_of_document()) return false;
  const bool words = folder && (fs::exists(spec / "vocab.json") || fs::exists(spec / "encoder.json"));
  return !words && (spec.extension() == ".model" || (folder && fs::exists(spec / "tokenizer.model")));
}

}  // namespace te::generate
