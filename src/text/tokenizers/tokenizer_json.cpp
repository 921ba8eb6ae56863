// tokenizer.json and GPT-2's two files.
#include "core/error.h"
#include "text/tokenizers/tokenizer_files.h"
#include "text/tokenizers/utf8.h"

namespace te::text {

namespace {

void read_vocab(const JsonReader& json, BpeSpec& spec) {
  spec.vocab.reserve(json.object().size());
  for (const auto& [token, id] : json.object()) {
    if (!id.is_number_integer()) {
      json.fail(
          fmt::format("the id of {} is of type {}; it must be an integer", shown(token), id.type_name()));
    }
    // Above int64 it would turn negative, which is out of range as well.
    spec.vocab.emplace_back(token, id.get<int64_t>());
  }
}

/// "left right": one space, and nothing but these two.
std::pair<std::string, std::string> split_merge(std::string_view text, const std::string& where) {
  const size_t space = text.find(' ');
  if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) {
    user_error("{}: {} must be two tokens with a space between them", where, shown(text));
  }
  return {std::string(text.substr(0, space)), std::string(text.substr(space + 1))};
}

/// Pairs as ["left", "right"], or as "left right" in older files.
void read_merges(const JsonReader& json, BpeSpec& spec) {
  const auto& list = json.array();
  spec.merges.reserve(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i].is_string()) {
      spec.merges.push_back(
          split_merge(list[i].get_ref<const std::string&>(), fmt::format("{}[{}]", json.where(), i)));
    } else if (list[i].is_array() && list[i].size() == 2 && list[i][0].is_string() &&
               list[i][1].is_string()) {
      spec.merges.emplace_back(list[i][0].get_ref<const std::string&>(),
                               list[i][1].get_ref<const std::string&>());
    } else {
      json.element(i).fail("must be two tokens: [\"left\", \"right\"] or \"left right\"");
    }
  }
}

BpeSpec read_model(const JsonReader& json) {
  const std::string type = json.string_or("type", "BPE");
  if (type != "BPE") {
    json.fail("the model " + shown(type) +
              " is not supported (BPE is); for a Unigram or SentencePiece model " +
              "use its tokenizer.model");
  }
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!json.string_or(affix, "").empty()) json.fail(fmt::format("{} is not supported", affix));
  }
  if (const auto dropout = json.find("dropout");
      dropout && !(dropout->value().is_number() && dropout->value().get<double>() == 0.0)) {
    dropout->fail("is not supported: encoding must not be random; set it to null");
  }
  BpeSpec spec;
  if (const auto unk = json.find("unk_token")) spec.unk_token = unk->string();
  spec.fuse_unk = json.boolean_or("fuse_unk", false);
  spec.byte_fallback = json.boolean_or("byte_fallback", false);
  spec.ignore_merges = json.boolean_or("ignore_merges", false);
  read_vocab(json.at("vocab"), spec);
  read_merges(json.at("merges"), spec);
  return spec;
}

AddedToken read_added_token(const JsonReader& json) {
  AddedToken token;
  token.content = json.at("content").string();
  token.id = json.at("id").integer();
  if (token.content.empty()) json.fail("`content` is empty; it must be a text");
  token.single_word = json.boolean_or("single_word", false);
  token.lstrip = json.boolean_or("lstrip", false);
  token.rstrip = json.boolean_or("rstrip", false);
  token.special = json.boolean_or("special", false);
  token.normalized = json.boolean_or("normalized", !token.special);
  return token;
}

}  // namespace

BpeTokenizerSpec read_tokenizer_json(const std::string& text, const std::string& name) {
  const std::string where = "tokenizer " + name;
  const nlohmann::json value = JsonReader::parse(text, where);
  const nlohmann::json null;
  const JsonReader json(value, where);
  const JsonReader nothing(null, where);
  const JsonReader model(json.at("model").value(), where + ": model");
  const auto part = [&](const char* key) {
    return JsonReader(json.find(key).value_or(nothing).value(), fmt::format("{}: {}", where, key));
  };
  BpeTokenizerSpec spec{.model = read_model(model),
                        .added_tokens = {},
                        .normalizer = Normalizer(part("normalizer")),
                        .pre_tokenizer = PreTokenizer(part("pre_tokenizer")),
                        .decoder = Decoder(part("decoder"))};
  spec.model.byte_level = spec.pre_tokenizer.byte_level();
  if (spec.model.byte_level && spec.model.byte_fallback) {
    model.fail("byte_fallback with the pre-tokenizer ByteLevel is not supported");
  }
  if (const JsonReader added = part("added_tokens"); !added.is_null()) {
    for (size_t i = 0; i < added.array().size(); ++i)
      spec.added_tokens.push_back(read_added_token(added.element(i)));
  }
  return spec;
}

BpeTokenizerSpec read_gpt2_files(const std::string& vocab, const std::string& merges,
                                 const std::string& name) {
  const std::string where = "tokenizer " + name;
  const nlohmann::json value = JsonReader::parse(vocab, where + ": the vocabulary");
  BpeTokenizerSpec spec{.model = {},
                        .added_tokens = {},
                        .normalizer = Normalizer(JsonReader(nullptr, where)),
                        .pre_tokenizer = PreTokenizer::gpt2(),
                        .decoder = Decoder::byte_level()};
  read_vocab(JsonReader(value, where + ": the vocabulary"), spec.model);
  spec.model.byte_level = true;
  std::string_view rest = merges;
  for (size_t line = 1; !rest.empty(); ++line) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view text = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (text.ends_with('\r')) text.remove_suffix(1);
    if (text.starts_with("#version") || (text.empty() && rest.empty())) continue;
    spec.model.merges.push_back(split_merge(text, fmt::format("{}: line {} of the merges", where, line)));
  }
  constexpr const char* kEndOfText = "<|endoftext|>";
  if (const auto found = value.find(kEndOfText); found != value.end()) {
    spec.added_tokens.push_back(
        {.content = kEndOfText, .id = found->get<int64_t>(), .normalized = false, .special = true});
  }
  return spec;
}

}  // namespace te::text
