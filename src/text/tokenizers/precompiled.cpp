// The normalizer Precompiled: SentencePiece's replacement table, applied as in Hugging Face tokenizers. A grapheme
// cluster of less than six bytes is replaced by the text of the shortest key that is a prefix of it; the rest of the
// cluster (an accent, for example) is lost. In other clusters, each character is replaced by the text of the shortest
// key that is a prefix of the character. SentencePiece itself uses the longest key. Definition: Hugging Face
// tokenizers, normalizers/precompiled.
//
// The table is encoded in base64 and consists of the size of the trie in bytes (u32), the trie, and NUL-terminated
// texts. The trie is a double array of Darts-clone. Bits of a unit: 0 to 7 and 31 the label, 8 whether a key ends here,
// 9 whether the offset is multiplied by 256, 10 to 30 the offset of its children; the unit at the end of a key has the
// position of its text in bits 0 to 30.
#include <array>
#include <cstring>
#include <optional>
#include <vector>

#include "core/error.h"
#include "text/tokenizers/grapheme.h"
#include "text/tokenizers/normalizer_step.h"
#include "text/tokenizers/utf8.h"

namespace te::text {

namespace {

/// Decodes base64 with padding; nullopt if `text` is not base64.
std::optional<std::string> from_base64(std::string_view text) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::array<int8_t, 256> values{};
  values.fill(-1);
  for (size_t i = 0; i < kDigits.size(); ++i)
    values[static_cast<uint8_t>(kDigits[i])] = static_cast<int8_t>(i);
  if (text.size() % 4 != 0) return {};
  size_t padding = 0;
  while (padding < 2 && text.ends_with('=')) {
    text.remove_suffix(1);
    ++padding;
  }
  std::string bytes;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const int8_t value = values[static_cast<uint8_t>(c)];
    if (value < 0) return {};
    bits = bits << 6 | static_cast<uint32_t>(value);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes += static_cast<char>(bits >> count & 0xFF);
  }
  return bytes;
}

class PrecompiledStep {
 public:
  explicit PrecompiledStep(const JsonReader& json) : where_(json.where()) {
    const auto bytes = from_base64(json.string());
    if (!bytes) json.fail("is not base64; download the file again");
    uint32_t size = 0;
    if (bytes->size() >= sizeof size) std::memcpy(&size, bytes->data(), sizeof size);
    if (size == 0 || size % sizeof(uint32_t) != 0 || size > bytes->size() - sizeof size) damaged();
    units_.resize(size / sizeof(uint32_t));
    std::memcpy(units_.data(), bytes->data() + sizeof size, size);
    texts_ = bytes->substr(sizeof size + size);
    if (valid_utf8_prefix(texts_) != texts_.size()) damaged();
    for (size_t c = 0; c < ascii_.size(); ++c) {
      const char byte = static_cast<char>(c);
      ascii_[c] = find({&byte, 1}).has_value();
    }
  }

  void operator()(std::string_view text, BoundedText& result, PatternWorkspace& /*workspace*/) const {
    GraphemeBoundaries boundaries;
    size_t begin = 0, at = 0;  // start of the cluster, start of the next character
    for_each_character(text, [&](uint32_t c, std::string_view bytes) {
      if (boundaries.next(c)) {
        append_cluster(text.substr(begin, at - begin), result);
        begin = at;
      }
      at += bytes.size();
    });
    append_cluster(text.substr(begin), result);
  }

 private:
  [[noreturn]] void damaged() const {
    user_error("{}: the replacement table of SentencePiece is damaged; download the file again", where_);
  }

  void append_cluster(std::string_view cluster, BoundedText& result) const {
    if (cluster.size() == 1 && static_cast<uint8_t>(cluster[0]) < ascii_.size() &&
        !ascii_[static_cast<uint8_t>(cluster[0])]) {
      result += cluster;
      return;
    }
    constexpr size_t kLong = 6;
    if (cluster.size() < kLong) {
      if (const auto text = find(cluster)) {
        result += *text;
        return;
      }
    }
    for_each_character(cluster, [&](uint32_t c, std::string_view bytes) {
      const auto text = c == kNoCharacter ? std::nullopt : find(bytes);
      result += text.value_or(bytes);
    });
  }

  uint32_t unit(size_t node) const {
    if (node >= units_.size()) damaged();
    return units_[node];
  }
  static size_t offset(uint32_t unit) { return size_t{unit >> 10} << ((unit & 1U << 9) >> 6); }

  /// The replacement of the shortest key that `text` begins with.
  std::optional<std::string_view> find(std::string_view text) const {
    size_t node = offset(unit(0));
    for (const char c : text) {
      if (c == '\0') return {};
      node ^= static_cast<uint8_t>(c);
      const uint32_t here = unit(node);
      if ((here & (1U << 31 | 0xFF)) != static_cast<uint8_t>(c)) return {};
      node ^= offset(here);
      if ((here & 1U << 8) == 0) continue;
      const size_t begin = unit(node) & ~(1U << 31);
      if (begin > texts_.size() || (begin < texts_.size() && (texts_[begin] & 0xC0) == 0x80)) damaged();
      const std::string_view rest = std::string_view(texts_).substr(begin);
      return rest.substr(0, rest.find('\0'));
    }
    return {};
  }

  std::string where_;
  std::vector<uint32_t> units_;
  std::string texts_;
  std::array<bool, 128> ascii_{};  // whether the table replaces the character
};

}  // namespace

NormalizerStep make_precompiled(const JsonReader& json) {
  return {PrecompiledStep(json.at("precompiled_charsmap"))};
}

}  // namespace te::text
