// Reads the "model" of a tokenizer.json.
#include "text/tokenizers/model_json.h"

#include <array>
#include <charconv>
#include <cmath>

#include "core/error.h"
#include "text/tokenizers/utf8.h"

namespace te::text {

void read_token_ids(const JsonReader& json, TokenIds& tokens) {
  tokens.reserve(json.object().size());
  for (const auto& [token, id] : json.object()) {
    if (!id.is_number_integer()) {
      json.fail(
          fmt::format("the id of {} is of type {}; it must be an integer", shown(token), id.type_name()));
    }
    // A number above the range of int64 becomes negative here and is refused later as out of range.
    tokens.emplace_back(token, id.get<int64_t>());
  }
}

/// Splits "left right", two tokens with exactly one space between them.
std::pair<std::string, std::string> split_merge(std::string_view text, const std::string& where) {
  const size_t space = text.find(' ');
  if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) {
    user_error("{}: {} must be two tokens with a space between them", where, shown(text));
  }
  return {std::string(text.substr(0, space)), std::string(text.substr(space + 1))};
}

namespace {

/// Reads the merges: pairs ["left", "right"], or strings "left right" in older files.
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

BpeSpec read_bpe(const JsonReader& json) {
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
  read_token_ids(json.at("vocab"), spec.vocab);
  read_merges(json.at("merges"), spec);
  return spec;
}

/// The score as the reference parses it. Its JSON library divides the digits by a power of ten, so the result can
/// differ from the nearest double in the last bit; this bit decides between paths with the same tokens in a different
/// order. `value` is the nearest double; its shortest decimal form has the digits of the file.
double as_reference_reads(double value) {
  std::array<char, 40> text{};
  const char* end =
      std::to_chars(text.data(), text.data() + text.size(), std::abs(value), std::chars_format::scientific)
          .ptr;
  uint64_t digits = 0;
  int exponent = 0, decimals = 0;
  bool after_point = false;
  const char* at = text.data();
  for (; at != end && *at != 'e'; ++at) {
    if (*at == '.') {
      after_point = true;
      continue;
    }
    digits = digits * 10 + static_cast<uint64_t>(*at - '0');
    decimals += after_point ? 1 : 0;
  }
  if (at != end) std::from_chars(at + (at[1] == '+' ? 2 : 1), end, exponent);
  exponent -= decimals;
  constexpr int kMaxExact = 22;  // larger powers of ten are not exact doubles; scores do not need them
  if (exponent < -kMaxExact || exponent > kMaxExact) return value;
  const double power = std::pow(10.0, std::abs(exponent));
  const double result =
      exponent >= 0 ? static_cast<double>(digits) * power : static_cast<double>(digits) / power;
  return std::signbit(value) ? -result : result;
}

UnigramSpec read_unigram(const JsonReader& json) {
  UnigramSpec spec;
  if (const auto unk = json.find("unk_id")) spec.unk_id = unk->integer();
  spec.byte_fallback = json.boolean_or("byte_fallback", false);
  const JsonReader vocab = json.at("vocab");
  const auto& list = vocab.array();
  spec.vocab.reserve(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    if (!list[i].is_array() || list[i].size() != 2 || !list[i][0].is_string() || !list[i][1].is_number()) {
      vocab.element(i).fail("must be a token and its score: [\"token\", -1.5]");
    }
    spec.vocab.emplace_back(list[i][0].get_ref<const std::string&>(),
                            as_reference_reads(list[i][1].get<double>()));
  }
  return spec;
}

WordPieceSpec read_wordpiece(const JsonReader& json) {
  WordPieceSpec spec{.vocab = {},
                     .unk_token = json.at("unk_token").string(),
                     .prefix = json.at("continuing_subword_prefix").string(),
                     .max_characters = json.at("max_input_chars_per_word").integer()};
  read_token_ids(json.at("vocab"), spec.vocab);
  return spec;
}

WordLevelSpec read_word_level(const JsonReader& json) {
  WordLevelSpec spec{.vocab = {}, .unk_token = json.at("unk_token").string()};
  read_token_ids(json.at("vocab"), spec.vocab);
  return spec;
}

}  // namespace

ModelSpec read_model(const JsonReader& json) {
  const std::string type = json.string_or("type", "BPE");
  if (type == "BPE") return read_bpe(json);
  if (type == "Unigram") return read_unigram(json);
  if (type == "WordPiece") return read_wordpiece(json);
  if (type == "WordLevel") return read_word_level(json);
  json.fail("the model " + shown(type) + " is not supported (BPE, Unigram, WordPiece and WordLevel are)");
}

}  // namespace te::text
