#include "generate/begin_token.h"

#include <filesystem>
#include <optional>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/log.h"
#include "text/tokenizers/tokenizer_settings.h"
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

/// add_bos_token of tokenizer_config.json, if it has the key.
std::optional<bool> stated_begin(const fs::path& file) {
  if (!fs::is_regular_file(file)) return {};
  const json config = read_json(file);
  const auto key = config.is_object() ? config.find("add_bos_token") : config.end();
  return key != config.end() && key->is_boolean() ? std::optional(key->get<bool>()) : std::nullopt;
}

/// The default of add_bos_token in the classes of transformers 4 that replace the post_processor of tokenizer.json.
std::optional<bool> class_begin(const std::string& name) {
  for (const char* adds : {"LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer", "CohereTokenizer"})
    if (name == adds) return true;
  return name == "GPTNeoXTokenizer" ? std::optional(false) : std::nullopt;
}

/// What add_bos_token or its default says; nullopt if the post_processor of tokenizer.json (`json_file`, may be empty)
/// decides.
std::optional<bool> configured_begin(const text::Tokenizer& tokenizer, const fs::path& json_file) {
  const fs::path folder = text::tokenizer_folder(tokenizer.name());
  const std::string name = text::read_tokenizer_settings(folder.string(), tokenizer.name()).tokenizer_class;
  const std::optional<bool> stated = stated_begin(folder / "tokenizer_config.json"),
                            fallback = class_begin(name);
  const std::optional<bool> adds = stated ? stated : fallback;
  const bool ignored = !json_file.empty() && !name.empty() && !fallback;
  if (adds && !json_file.empty() && template_begins(tokenizer, json_file) != *adds)
    log_warning(
        "{}: add_bos_token is {}{}, but the post_processor of tokenizer.json says the opposite; the {} is "
        "used, "
        "as in transformers 4{}",
        folder.string(), *adds, stated ? "" : " by default of " + name, ignored ? "latter" : "former",
        ignored ? "" : "; transformers 5 uses the latter");
  return ignored ? std::nullopt : adds;
}

}  // namespace

bool adds_begin_of_document(const text::Tokenizer& tokenizer) {
  const fs::path spec(tokenizer.name());
  const bool folder = fs::is_directory(spec);
  // The file that text::make_tokenizer uses.
  const fs::path json_file = folder ? spec / "tokenizer.json" : spec;
  const bool has_json = fs::is_regular_file(json_file) && json_file.extension() == ".json" &&
                        json_file.filename() != "vocab.json" && json_file.filename() != "encoder.json";
  if (tokenizer.begin_of_document() && spec != "bytes")
    if (const auto adds = configured_begin(tokenizer, has_json ? json_file : fs::path())) return *adds;
  if (has_json) return template_begins(tokenizer, json_file);
  if (!tokenizer.begin_of_document()) return false;
  const bool words = folder && (fs::exists(spec / "vocab.json") || fs::exists(spec / "encoder.json"));
  return !words && (spec.extension() == ".model" || (folder && fs::exists(spec / "tokenizer.model")));
}

}  // namespace te::generate
