// Definitions: Hugging Face tokenizers, decoders.
#include "text/tokenizers/decoder.h"

#include <fmt/ranges.h>

#include <charconv>
#include <utility>

#include "core/error.h"
#include "text/tokenizers/bounded_text.h"
#include "text/tokenizers/byte_level.h"
#include "text/tokenizers/utf8.h"

namespace te::text {

namespace {

/// The byte of a token such as "<0x0A>"; -1 for other tokens.
int fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  uint8_t value = 0;
  const auto [end, error] = std::from_chars(&token[3], &token[5], value, 16);
  return error == std::errc() && end == &token[5] ? value : -1;
}

/// Removes up to `start` occurrences of `content` at the beginning and up to `stop` at the end.
void strip(std::string& text, std::string_view content, int64_t start, int64_t stop) {
  size_t begin = 0, end = text.size();
  for (; start > 0 && std::string_view(text).substr(begin, end - begin).starts_with(content); --start) {
    begin += content.size();
  }
  for (; stop > 0 && std::string_view(text).substr(begin, end - begin).ends_with(content); --stop) {
    end -= content.size();
  }
  text = text.substr(begin, end - begin);
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string result;
  append_replaced(text, from, to, result);
  return result;
}

void fuse(std::vector<std::string>& tokens, std::string_view between = "") {
  tokens = {fmt::format("{}", fmt::join(tokens, between))};
}

/// Joins consecutive byte tokens to one token with their bytes.
void join_bytes(std::vector<std::string>& tokens) {
  std::vector<std::string> result;
  std::string bytes;
  const auto flush = [&] {
    // Invalid UTF-8 stays one token per byte, because the reference replaces each of its bytes by U+FFFD.
    if (valid_utf8_prefix(bytes) == bytes.size()) {
      if (!bytes.empty()) result.push_back(bytes);
    } else {
      for (const char byte : bytes) result.emplace_back(1, byte);
    }
    bytes.clear();
  };
  for (std::string& token : tokens) {
    if (const int byte = fallback_byte(token); byte >= 0) {
      bytes += static_cast<char>(byte);
    } else {
      flush();
      result.push_back(std::move(token));
    }
  }
  flush();
  tokens = std::move(result);
}

/// WordPiece's cleanup: removes spaces before punctuation and English contractions.
std::string cleaned(std::string text) {
  static constexpr std::pair<std::string_view, std::string_view> kReplacements[] = {
      {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
      {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kReplacements) text = replaced(text, from, to);
  return text;
}

}  // namespace

Decoder::Decoder(const JsonReader& json) {
  if (json.is_null()) return;
  add_parts(json, "decoders", steps_,
            [this](const std::string& type, const JsonReader& part) { add_part(type, part); });
}

Decoder Decoder::byte_level() {
  Decoder result;
  result.steps_.push_back({.kind = Kind::kByteLevel});
  return result;
}

void Decoder::add_part(const std::string& type, const JsonReader& json) {
  if (type == "ByteLevel") {
    steps_.push_back({.kind = Kind::kByteLevel});
  } else if (type == "Replace") {
    Step step{.kind = Kind::kReplace, .content = json.at("content").string()};
    const JsonReader pattern = json.at("pattern");
    if (const auto text = pattern.find("String")) {
      if (text->string().empty()) text->fail("is empty; it must be a text to replace");
      step.text = text->string();
    } else {
      const JsonReader regex = pattern.at("Regex");
      step.pattern = std::make_shared<const Pattern>(regex.string(), regex.where());
    }
    steps_.push_back(std::move(step));
  } else if (type == "ByteFallback") {
    steps_.push_back({.kind = Kind::kByteFallback});
  } else if (type == "Fuse") {
    steps_.push_back({.kind = Kind::kFuse});
  } else if (type == "Strip") {
    Step step{.kind = Kind::kStrip, .text = json.at("content").string()};
    step.start = json.at("start").integer();
    step.stop = json.at("stop").integer();
    if (step.text.empty()) json.fail("`content` is empty; it must be a character");
    steps_.push_back(std::move(step));
  } else if (type == "Metaspace") {
    Step step{.kind = Kind::kMetaspace, .text = json.at("replacement").string()};
    if (step.text.empty()) json.fail("`replacement` is empty; it must be a character");
    step.keep_first =
        json.string_or("prepend_scheme", "always") == "never" || !json.boolean_or("add_prefix_space", true);
    steps_.push_back(std::move(step));
  } else if (type == "WordPiece") {
    Step step{.kind = Kind::kWordPiece, .text = json.at("prefix").string()};
    step.cleanup = json.at("cleanup").boolean();
    steps_.push_back(std::move(step));
  } else if (type == "BPEDecoder") {
    Step step{.kind = Kind::kBpe, .text = json.at("suffix").string()};
    if (step.text.empty()) json.fail("`suffix` is empty; it must be a text");
    steps_.push_back(std::move(step));
  } else {
    json.fail("the decoder " + shown(type) +
              " is not supported (Sequence, ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace, "
              "WordPiece and BPEDecoder are)");
  }
}

void Decoder::apply(const Step& step, size_t limit, std::vector<std::string>& tokens) {
  switch (step.kind) {
    case Kind::kByteLevel:
      for (std::string& token : tokens) {
        if (auto bytes = byte_level_bytes(token)) token = std::move(*bytes);
      }
      return fuse(tokens);
    case Kind::kReplace:
      for (std::string& token : tokens) {
        std::string text;
        BoundedText result(text, limit, "decoder");
        if (step.pattern) {
          PatternWorkspace workspace;
          step.pattern->append_replaced(workspace, token, step.content, result);
        } else {
          append_replaced(token, step.text, step.content, result);
        }
        limit -= text.size();
        token = std::move(text);
      }
      return;
    case Kind::kByteFallback:
      return join_bytes(tokens);
    case Kind::kFuse:
      return fuse(tokens);
    case Kind::kStrip:
      for (std::string& token : tokens) strip(token, step.text, step.start, step.stop);
      return;
    case Kind::kMetaspace:
      for (size_t i = 0; i < tokens.size(); ++i) {
        tokens[i] = replaced(tokens[i], step.text, i == 0 && !step.keep_first ? "" : " ");
      }
      return;
    case Kind::kWordPiece:
      for (size_t i = 0; i < tokens.size(); ++i) {
        if (i > 0)
          tokens[i] = tokens[i].starts_with(step.text) ? tokens[i].substr(step.text.size()) : " " + tokens[i];
        if (step.cleanup) tokens[i] = cleaned(std::move(tokens[i]));
      }
      return;
    case Kind::kBpe:
      for (size_t i = 0; i < tokens.size(); ++i) {
        tokens[i] = replaced(tokens[i], step.text, i + 1 == tokens.size() ? "" : " ");
      }
      return;
  }
}

std::string Decoder::decode(std::vector<std::string> tokens) const {
  size_t bytes = 0;
  for (const std::string& token : tokens) bytes += token.size();
  for (const Step& step : steps_) apply(step, BoundedText::limit_of(bytes), tokens);
  fuse(tokens, steps_.empty() ? " " : "");
  return std::move(tokens[0]);
}

}  // namespace te::text
