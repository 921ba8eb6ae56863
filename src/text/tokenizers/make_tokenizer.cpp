// Determines the kind of tokenizer at a path and loads it.
#include <filesystem>

#include "core/error.h"
#include "core/log.h"
#include "text/tokenizer.h"
#include "text/tokenizers/byte_tokenizer.h"
#include "text/tokenizers/sentencepiece_tokenizer.h"
#include "text/tokenizers/tokenizer_files.h"

namespace te::text {

namespace {

namespace fs = std::filesystem;

constexpr const char* kKinds =
    "a tokenizer is `bytes`, a tokenizer.json, a vocab.json with its merges.txt (encoder.json with "
    "vocab.bpe), a SentencePiece tokenizer.model, or a folder with one of these";

std::unique_ptr<Tokenizer> make_bpe(PipelineSpec spec, const TokenizerSettings& settings,
                                    const std::string& name) {
  spec.added_tokens = merge_added_tokens(std::move(spec.added_tokens), settings, "tokenizer " + name);
  auto tokenizer = std::make_unique<PipelineTokenizer>(std::move(spec), name);
  const auto special = [&](const char* token) { return tokenizer->find_special(token); };
  tokenizer->set_document_tokens(choose_end_of_document(*tokenizer, settings, {}, special),
                                 choose_begin_of_document(*tokenizer, settings, {}, special));
  return tokenizer;
}

std::unique_ptr<Tokenizer> make_sentencepiece(const fs::path& file, const std::string& name) {
  const std::string model = read_tokenizer_file(file, "tokenizer " + name);
  if (model.find('\0') == std::string::npos && model.find("== 0\n") < 100) {
    user_error(
        "tokenizer {}: {} is a tiktoken vocabulary, which lacks the regular expression and the special "
        "tokens; use the tokenizer.json of the same model",
        name, file.string());
  }
  const TokenizerSettings settings = read_tokenizer_settings(file.parent_path(), name);
  auto tokenizer = std::make_unique<SentencePieceTokenizer>(model, name, settings);
  const auto special = [&](const char* token) { return tokenizer->find_special(token); };
  tokenizer->set_document_tokens(
      choose_end_of_document(*tokenizer, settings, tokenizer->model_end(), special),
      choose_begin_of_document(*tokenizer, settings, tokenizer->model_begin(), special));
  return tokenizer;
}

std::unique_ptr<Tokenizer> make_gpt2(const fs::path& vocab, const fs::path& merges, const std::string& name) {
  const std::string where = "tokenizer " + name;
  for (const fs::path& file : {vocab, merges}) {
    if (!fs::is_regular_file(file))
      user_error("{}: {} is missing; the vocabulary and the merges must be in the same folder", where,
                 file.string());
  }
  const TokenizerSettings settings = read_tokenizer_settings(vocab.parent_path(), name);
  return make_bpe(
      read_gpt2_files(read_tokenizer_file(vocab, where), read_tokenizer_file(merges, where), settings, name),
      settings, name);
}

std::unique_ptr<Tokenizer> make_from_file(const fs::path& file, const std::string& name) {
  const std::string base = file.filename();
  const fs::path folder = file.parent_path();
  if (base == "vocab.json" || base == "merges.txt")
    return make_gpt2(folder / "vocab.json", folder / "merges.txt", name);
  if (base == "encoder.json" || base == "vocab.bpe") {
    return make_gpt2(folder / "encoder.json", folder / "vocab.bpe", name);
  }
  if (file.extension() == ".model") return make_sentencepiece(file, name);
  if (file.extension() == ".json") {
    const TokenizerSettings settings = read_tokenizer_settings(folder, name);
    const std::string text = read_tokenizer_file(file, "tokenizer " + name);
    return make_bpe(read_tokenizer_json(text, name, settings.add_prefix_space), settings, name);
  }
  user_error("tokenizer {}: unknown kind of file; {}", name, kKinds);
}

template <class OnStep>
void for_each_step(const nlohmann::json& step, const OnStep& on_step) {
  if (!step.is_object()) return;
  for (const char* list : {"normalizers", "pretokenizers"})
    if (step.contains(list))
      for (const nlohmann::json& inner : step.at(list)) for_each_step(inner, on_step);
  on_step(step);
}

/// How a tokenizer.json adds a space before a text: "Prepend", the prepend_scheme of Metaspace, "never" or "ByteLevel".
std::string space_rule(const nlohmann::json& tokenizer) {
  std::string rule = "never";
  for (const char* part : {"normalizer", "pre_tokenizer"}) {
    if (!tokenizer.is_object() || !tokenizer.contains(part)) continue;
    for_each_step(tokenizer.at(part), [&](const nlohmann::json& step) {
      const nlohmann::json type = step.value("type", nlohmann::json());
      if (type == "Prepend" || type == "ByteLevel") rule = type.get<std::string>();
      if (type != "Metaspace") return;
      const nlohmann::json scheme = step.value("prepend_scheme", nlohmann::json("always"));
      if (scheme.is_string() && scheme != "never") rule = scheme.get<std::string>();
    });
  }
  return rule;
}

/// Whether a folder's add_prefix_space contradicts its tokenizer.json. AutoTokenizer then converts tokenizer.model, as
/// always if LlamaTokenizer has that key.
bool needs_model(const fs::path& folder, const std::string& name) {
  const fs::path file = folder / "tokenizer.json";
  if (!fs::is_regular_file(file) || !fs::is_regular_file(folder / "tokenizer.model")) return false;
  const TokenizerSettings settings = read_tokenizer_settings(folder, name);
  if (settings.tokenizer_class != "LlamaTokenizer" || !settings.add_prefix_space) return false;
  const std::string where = "tokenizer " + name;
  const std::string found = space_rule(JsonReader::parse(read_tokenizer_file(file, where), where));
  const char* wanted = !*settings.add_prefix_space ? "never" : settings.legacy ? "Prepend" : "first";
  if (found == wanted || found == "ByteLevel") return false;
  log_warning(
      "{}: add_prefix_space {} and legacy {} of tokenizer_config.json contradict tokenizer.json; "
      "tokenizer.model is used, as in transformers 4",
      where, *settings.add_prefix_space, settings.legacy);
  return true;
}

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& spec) {
  if (spec == "bytes") return std::make_unique<ByteTokenizer>();
  std::error_code error;
  const fs::file_status status = fs::status(spec, error);
  if (fs::is_regular_file(status)) return make_from_file(spec, spec);
  if (!fs::is_directory(status)) user_error("tokenizer `{}`: no such file or folder; {}", spec, kKinds);
  const fs::path folder(spec);
  if (needs_model(folder, spec)) return make_from_file(folder / "tokenizer.model", spec);
  for (const char* name : {"tokenizer.json", "vocab.json", "encoder.json", "tokenizer.model"}) {
    if (fs::is_regular_file(folder / name)) return make_from_file(folder / name, spec);
  }
  user_error("tokenizer {}: the folder contains no tokenizer; {}", spec, kKinds);
}

fs::path tokenizer_folder(const std::string& spec) {
  if (spec.empty() || spec == "bytes") return {};
  const fs::path path(spec);
  if (fs::is_directory(path)) return path;
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

}  // namespace te::text
