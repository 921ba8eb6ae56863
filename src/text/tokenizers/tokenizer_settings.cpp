#include "text/tokenizers/tokenizer_settings.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <functional>
#include <utility>

#include "core/error.h"
#include "text/tokenizers/utf8.h"

namespace te::text {

namespace {

namespace fs = std::filesystem;

/// In the order in which transformers adds tokens that a vocabulary lacks.
constexpr std::array<const char*, 7> kNamedTokens = {"bos_token", "eos_token", "unk_token", "sep_token",
                                                     "pad_token", "cls_token", "mask_token"};

/// Classes with default special tokens; other classes have none.
struct ClassTokens {
  std::string_view name, begin, end, unknown, pad;

  std::string_view of(std::string_view key) const {
    if (key == "bos_token") return begin;
    if (key == "eos_token") return end;
    if (key == "unk_token") return unknown;
    return key == "pad_token" ? pad : "";
  }
};
constexpr std::string_view kEndText = "<|endoftext|>";
constexpr std::array<ClassTokens, 6> kClasses = {{{"GPT2Tokenizer", kEndText, kEndText, kEndText, ""},
                                                  {"GPTNeoXTokenizer", kEndText, kEndText, kEndText, ""},
                                                  {"Qwen2Tokenizer", "", kEndText, kEndText, kEndText},
                                                  {"LlamaTokenizer", "<s>", "</s>", "<unk>", ""},
                                                  {"CodeLlamaTokenizer", "<s>", "</s>", "<unk>", ""},
                                                  {"GemmaTokenizer", "<bos>", "<eos>", "<unk>", "<pad>"}}};

/// The classes of the models that te-convert imports, for folders whose tokenizer_config.json names no class.
constexpr std::array<std::pair<std::string_view, std::string_view>, 13> kClassOfModel = {
    {{"gpt2", "GPT2Tokenizer"},
     {"gpt_neox", "GPTNeoXTokenizer"},
     {"llama", "LlamaTokenizer"},
     {"mistral", "LlamaTokenizer"},
     {"mixtral", "LlamaTokenizer"},
     {"phi3", "LlamaTokenizer"},
     {"qwen2", "Qwen2Tokenizer"},
     {"qwen2_moe", "Qwen2Tokenizer"},
     {"qwen3", "Qwen2Tokenizer"},
     {"qwen3_moe", "Qwen2Tokenizer"},
     {"gemma", "GemmaTokenizer"},
     {"gemma2", "GemmaTokenizer"},
     {"gemma3_text", "GemmaTokenizer"}}};

/// Reads a special token: its name, or an object. A token given by name is not matched in normalized text.
AddedToken read_special_token(const JsonReader& json) {
  AddedToken token;
  if (json.value().is_object()) {
    token = read_added_token(json);
  } else {
    token = {.content = json.string(), .normalized = false};
    if (token.content.empty()) json.fail("is empty; it must be a text, or null");
  }
  token.special = true;
  return token;
}

class SettingsReader {
 public:
  SettingsReader(fs::path folder, std::string name) : folder_(std::move(folder)), name_(std::move(name)) {}

  TokenizerSettings read() {
    bool decoder = false;
    with("tokenizer_config.json", [&](const JsonReader& json) {
      result_.has_config = true;
      if (const auto space = json.find("add_prefix_space")) result_.add_prefix_space = space->boolean();
      result_.legacy = json.boolean_or("legacy", true);
      result_.tokenizer_class = json.string_or("tokenizer_class", "");
      if (json.boolean_or("split_special_tokens", false))
        json.at("split_special_tokens").fail("is true, which te-train does not support; set it to false");
      read_special(json);
      // As in transformers, the older files are not read if there is a table.
      if (const auto table = json.find("added_tokens_decoder")) {
        decoder = true;
        read_decoder(*table);
      }
    });
    if (!decoder) {
      with("special_tokens_map.json", [&](const JsonReader& json) { read_special(json); });
      with("added_tokens.json", [&](const JsonReader& json) { read_added(json); });
    }
    for (const char* key : kNamedTokens) {
      const auto found = result_.special.find(key);
      if (found == result_.special.end() || !found->second) continue;
      result_.named.push_back(*found->second);
      // The model has no embedding for a token that is not in the vocabulary, and every document would contain it.
      result_.named.back().gets_no_id = key == kNamedTokens[0] || key == kNamedTokens[1];
    }
    result_.named.insert(result_.named.end(), more_.begin(), more_.end());
    with("config.json", [&](const JsonReader& json) { choose_class(json); });
    if (const auto at = result_.tokenizer_class.rfind("Fast"); at != std::string::npos)
      result_.tokenizer_class.erase(at);
    add_class_tokens();
    finish_added(decoder);
    with("generation_config.json", [&](const JsonReader& json) { read_generation(json); });
    return std::move(result_);
  }

 private:
  void with(const char* file, const std::function<void(const JsonReader&)>& on_json) const {
    const fs::path path = folder_ / file;
    if (!fs::is_regular_file(path)) return;
    const std::string where = fmt::format("tokenizer {}: {}", name_, path.string());
    const nlohmann::json value = JsonReader::parse(read_tokenizer_file(path, "tokenizer " + name_), where);
    on_json(JsonReader(value, where));
  }

  void read_special(const JsonReader& json) {
    for (const char* key : kNamedTokens) {
      if (const auto token = json.find(key)) {
        result_.special[key] = read_special_token(*token);
      } else if (json.object().contains(key)) {
        result_.special[key] = std::nullopt;
      }
    }
    // A tokenizer_config.json can name more tokens, such as image_token.
    for (const auto& [key, value] : json.object()) {
      const bool other = std::ranges::find(kNamedTokens, key) == kNamedTokens.end();
      if (!key.ends_with("_token") || !other || !(value.is_string() || value.is_object())) continue;
      add_more(json.at(key), true);
    }
    for (const char* key : {"additional_special_tokens", "extra_special_tokens"}) {
      const auto list = json.find(key);
      if (!list) continue;
      if (list->value().is_object()) {
        for (const auto& [unused, token] : list->object()) add_more(JsonReader(token, list->where()));
      } else {
        for (size_t i = 0; i < list->array().size(); ++i) add_more(list->element(i));
      }
    }
  }
  void add_more(const JsonReader& json, bool gets_no_id = false) {
    AddedToken token = read_special_token(json);
    token.gets_no_id = gets_no_id;
    const bool known =
        std::ranges::any_of(more_, [&](const AddedToken& other) { return other.content == token.content; });
    if (!known) more_.push_back(token);
  }

  /// Adds the default tokens of the class, after the tokens that files name: these can get an id.
  void add_class_tokens() {
    for (const char* key : kNamedTokens) {
      const auto token = default_token(result_, key);
      if (!token || result_.special.contains(key)) continue;
      result_.named.push_back({.content = *token, .normalized = false, .special = true, .if_known = true});
    }
  }

  void read_decoder(const JsonReader& json) {
    for (const auto& [key, token] : json.object()) {
      const JsonReader entry = json.at(key);
      int64_t id = -1;
      const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
      if (error != std::errc() || end != key.data() + key.size() || id < 0)
        entry.fail("the key must be the token's id");
      result_.added.push_back(read_added_token(entry));
      result_.added.back().id = id;
    }
  }
  void read_added(const JsonReader& json) {
    result_.older_files = true;
    for (const auto& [content, id] : json.object()) {
      result_.added.push_back({.content = content, .id = JsonReader(id, json.where()).integer()});
      if (content.empty()) json.fail("a token is empty; it must be a text");
    }
  }
  /// Marks the tokens that a key names as special, independent of the table of added tokens.
  void finish_added(bool decoder) {
    for (AddedToken& token : result_.added) {
      const bool special = std::ranges::any_of(
          result_.named, [&](const AddedToken& named) { return named.content == token.content; });
      token.special = token.special || special;
      if (!decoder) token.normalized = !special;
    }
    std::ranges::sort(result_.added, {}, &AddedToken::id);
  }

  void choose_class(const JsonReader& json) {
    if (!result_.tokenizer_class.empty() || !json.value().is_object()) return;
    const auto type = json.find("model_type");
    if (!type || !type->value().is_string()) return;
    for (const auto& [model, name] : kClassOfModel)
      if (type->string() == model) result_.tokenizer_class = name;
  }
  void read_generation(const JsonReader& json) {
    const auto id = json.find("eos_token_id");
    if (!id) return;
    if (!id->value().is_array()) {
      result_.generation_end = id->integer();
    } else if (!id->value().empty()) {
      result_.generation_end = id->element(0).integer();
    }
  }

  fs::path folder_;
  std::string name_;
  TokenizerSettings result_;
  std::vector<AddedToken> more_;
};

}  // namespace

AddedToken read_added_token(const JsonReader& json) {
  AddedToken token;
  token.content = json.at("content").string();
  if (token.content.empty()) json.fail("`content` is empty; it must be a text");
  token.single_word = json.boolean_or("single_word", false);
  token.lstrip = json.boolean_or("lstrip", false);
  token.rstrip = json.boolean_or("rstrip", false);
  token.special = json.boolean_or("special", false);
  token.normalized = json.boolean_or("normalized", !token.special);
  return token;
}

TokenizerSettings read_tokenizer_settings(const std::string& folder, const std::string& name) {
  return SettingsReader(folder, name).read();
}

std::vector<AddedToken> merge_added_tokens(std::vector<AddedToken> own, const TokenizerSettings& settings,
                                           const std::string& where) {
  const auto find = [&](auto same) { return std::ranges::find_if(own, same); };
  for (const AddedToken& token : settings.added) {
    if (settings.older_files &&
        find([&](const AddedToken& other) { return other.id == token.id; }) != own.end())
      continue;
    const auto found = find([&](const AddedToken& other) { return other.content == token.content; });
    if (found == own.end()) {
      own.push_back(token);
      continue;
    }
    if (found->id != token.id) {
      user_error(
          "{}: added token {} has id {}, but {} in {}; the ids must agree", where, shown(token.content),
          *found->id, *token.id,
          settings.older_files ? "added_tokens.json" : "added_tokens_decoder of tokenizer_config.json");
    }
    const bool special = found->special || token.special;
    *found = token;
    found->special = special;
  }
  for (const AddedToken& token : settings.named) {
    if (find([&](const AddedToken& other) { return other.content == token.content; }) == own.end())
      own.push_back(token);
  }
  return own;
}

std::optional<std::string> default_token(const TokenizerSettings& settings, const std::string& key) {
  for (const ClassTokens& known : kClasses) {
    const std::string_view token = known.of(key);
    if (known.name == settings.tokenizer_class && !token.empty()) return std::string(token);
  }
  return {};
}

}  // namespace te::text
