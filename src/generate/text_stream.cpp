#include "generate/text_stream.h"

#include <algorithm>

#include "core/error.h"
#include "text/tokenizers/utf8.h"

namespace te::generate {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD
constexpr size_t kWindow = 8;            // number of earlier tokens that may affect the text of a token
constexpr size_t kLongestCharacter = 4;  // bytes

/// Number of bytes at the end of `text` that are the start of an incomplete character.
size_t incomplete_tail(std::string_view text) {
  for (size_t n = 1; n < kLongestCharacter && n <= text.size(); ++n) {
    const auto byte = static_cast<unsigned char>(text[text.size() - n]);
    if ((byte & 0xC0) == 0x80) continue;  // within a character
    const size_t length = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC2 ? 2 : 1;
    return byte <= 0xF4 && length > n ? n : 0;
  }
  return 0;
}

/// Length of the longest suffix of `text` that is a proper prefix of a stop string.
size_t stop_prefix(std::string_view text, const std::vector<std::string>& stops) {
  size_t longest = 0;
  for (const std::string& stop : stops) {
    for (size_t n = std::min(stop.size() - 1, text.size()); n > longest; --n) {
      if (text.ends_with(std::string_view(stop).substr(0, n))) longest = n;
    }
  }
  return longest;
}

}  // namespace

std::string valid_utf8(std::string_view bytes) {
  std::string text;
  text::for_each_utf8_run(bytes,
                          [&](std::string_view run, bool valid) { text += valid ? run : kReplacement; });
  return text;
}

TextStream::TextStream(const text::Tokenizer& tokenizer, std::span<const int32_t> prompt,
                       std::vector<std::string> stops)
    : tokenizer_(tokenizer), stops_(std::move(stops)) {
  for (const std::string& stop : stops_) TE_CHECK(!stop.empty(), "a stop string is empty");
  const size_t kept = std::min(prompt.size(), kWindow);
  window_.assign(prompt.end() - static_cast<std::ptrdiff_t>(kept), prompt.end());
  shown_ = window_.size();
}

// The bytes that a token adds to the text of the tokens before it. If the tokenizer decodes an incomplete character as
// U+FFFD, waits for the next tokens, at most as many as a character has bytes.
std::string TextStream::bytes_of(int32_t token) {
  window_.push_back(token);
  const std::span<const int32_t> all(window_);
  const std::string before = tokenizer_.decode(all.first(shown_)), after = tokenizer_.decode(all);
  const bool unfinished = after.ends_with(kReplacement) || !after.starts_with(before);
  if (unfinished && window_.size() - shown_ < kLongestCharacter) return {};
  const auto [same, ignored] = std::ranges::mismatch(before, after);
  std::string added = after.substr(static_cast<size_t>(same - before.begin()));
  if (window_.size() > 2 * kWindow) window_.erase(window_.begin(), window_.end() - kWindow);
  shown_ = window_.size();
  return added;
}

std::string TextStream::take_characters(bool all) {
  const size_t tail = all ? 0 : incomplete_tail(bytes_);
  std::string text = valid_utf8(std::string_view(bytes_).substr(0, bytes_.size() - tail));
  bytes_.erase(0, bytes_.size() - tail);
  return text;
}

std::string TextStream::release(bool all) {
  text_ += take_characters(all);
  size_t end = std::string::npos;
  for (const std::string& stop : stops_) end = std::min(end, text_.find(stop));
  stopped_ = end != std::string::npos;
  if (!stopped_) end = text_.size() - (all ? 0 : stop_prefix(text_, stops_));
  std::string certain = text_.substr(0, end);
  text_.erase(0, end);
  return certain;
}

std::string TextStream::add(int32_t token) {
  if (stopped_) return {};
  bytes_ += bytes_of(token);
  return release(false);
}

std::string TextStream::finish() {
  if (stopped_) return {};
  if (shown_ < window_.size()) {
    const std::span<const int32_t> all(window_);
    const std::string before = tokenizer_.decode(all.first(shown_)), after = tokenizer_.decode(all);
    if (after.starts_with(before)) bytes_ += after.substr(before.size());
    shown_ = window_.size();
  }
  return release(true);
}

}  // namespace te::generate
