#include "text/tokenizers/added_tokens.h"

#include <algorithm>
#include <map>
#include <utility>

#include "text/tokenizers/code_point_set.h"
#include "text/tokenizers/utf8.h"

namespace te::text {

namespace {

/// Start of the last character of text[0, end), or `end` if no valid UTF-8 sequence ends there.
size_t last_character(std::string_view text, size_t end) {
  for (size_t length = 1; length <= 4 && length <= end; ++length) {
    if (utf8_sequence_length(text.substr(end - length, length)) == length) return end - length;
  }
  return end;
}

}  // namespace

void AddedTokenFinder::add(std::string text, const AddedToken& token) {
  if (text.empty()) return;
  first_bytes_[static_cast<uint8_t>(text[0])] = true;
  entries_.push_back({std::move(text), &token});
}

void AddedTokenFinder::build() {
  // The first of several entries with the same text counts.
  std::map<std::string, const AddedToken*> by_text;
  for (Entry& entry : entries_) by_text.try_emplace(std::move(entry.text), entry.token);
  entries_.clear();
  for (const auto& [text, token] : by_text) entries_.push_back({text, token});
  if (std::ranges::count(first_bytes_, true) == 1) {
    only_first_byte_ = static_cast<uint8_t>(entries_.front().text[0]);
  }
}

bool AddedTokenFinder::next(std::string_view text, size_t from, Match& match) const {
  if (entries_.empty()) return false;
  for (size_t at = from; at < text.size(); ++at) {
    if (only_first_byte_ >= 0) {
      at = text.find(static_cast<char>(only_first_byte_), at);
      if (at == std::string_view::npos) return false;
    } else if (!first_bytes_[static_cast<uint8_t>(text[at])]) {
      continue;
    }
    if (match_at(text, at, match)) return true;
  }
  return false;
}

/// Finds the longest entry at `begin`: narrows down the range of sorted entries byte by byte.
bool AddedTokenFinder::match_at(std::string_view text, size_t begin, Match& match) const {
  auto low = entries_.begin(), high = entries_.end();
  bool found = false;
  for (size_t depth = 0; low != high; ++depth) {
    if (low->text.size() == depth) {  // the shortest entry with these bytes comes first
      match = {begin, begin + depth, low->token};
      found = true;
      ++low;
    }
    if (begin + depth >= text.size()) break;
    const auto byte = static_cast<uint8_t>(text[begin + depth]);
    const auto at_depth = [depth](const Entry& entry) { return static_cast<uint8_t>(entry.text[depth]); };
    low = std::partition_point(low, high, [&](const Entry& entry) { return at_depth(entry) < byte; });
    high = std::partition_point(low, high, [&](const Entry& entry) { return at_depth(entry) == byte; });
  }
  return found;
}

bool AddedTokenFinder::touches_word(std::string_view text, const Match& match) {
  const auto is_word = [&](size_t begin, size_t end) {
    return begin < end && rust_word_characters().contains(utf8_code_point(text.substr(begin, end - begin)));
  };
  const size_t after =
      match.end < text.size() ? match.end + utf8_sequence_length(text.substr(match.end)) : match.end;
  return is_word(last_character(text, match.begin), match.begin) || is_word(match.end, after);
}

size_t AddedTokenFinder::white_space_before(std::string_view text, size_t end) {
  while (end > 0) {
    const size_t begin = last_character(text, end);
    if (begin == end || !is_white_space(utf8_code_point(text.substr(begin, end - begin)))) break;
    end = begin;
  }
  return end;
}

size_t AddedTokenFinder::white_space_after(std::string_view text, size_t begin) {
  while (begin < text.size()) {
    const size_t length = utf8_sequence_length(text.substr(begin));
    if (length == 0 || !is_white_space(utf8_code_point(text.substr(begin, length)))) break;
    begin += length;
  }
  return begin;
}

}  // namespace te::text
