// Splits of a text that need no regular expression. All accept any bytes and call on_span(begin, end, is_match) for
// the parts of `text`, in order; an invalid byte counts as a character that is in no set.
#pragma once

#include <algorithm>
#include <string_view>

#include "text/tokenizers/code_point_set.h"
#include "text/tokenizers/normalizer_step.h"
#include "text/tokenizers/utf8.h"

namespace te::text {

/// A match is a single character of the set.
template <class OnSpan>
void split_at_characters(const CodePointSet& set, std::string_view text, OnSpan on_span) {
  size_t done = 0, at = 0;
  for_each_character(text, [&](uint32_t c, std::string_view bytes) {
    const size_t begin = at;
    at += bytes.size();
    if (!set.contains(c)) return;
    if (done < begin) on_span(done, begin, false);
    on_span(begin, at, true);
    done = at;
  });
  if (done < text.size()) on_span(done, text.size(), false);
}

/// A match is a run of word characters, or a run of other characters that are not white space.
template <class OnSpan>
void split_words(std::string_view text, OnSpan on_span) {
  enum Kind { kNone, kSpace, kWord, kOther };
  const CodePointSet& words = rust_word_characters();
  Kind last = kNone;
  size_t begin = 0, at = 0;
  for_each_character(text, [&](uint32_t c, std::string_view bytes) {
    const Kind kind = words.contains(c) ? kWord : is_white_space(c) ? kSpace : kOther;
    if (kind != last && at > begin) {
      on_span(begin, at, last != kSpace);
      begin = at;
    }
    last = kind;
    at += bytes.size();
  });
  if (at > begin) on_span(begin, at, last != kSpace);
}

/// Splits into spans of `length` characters; the last span can be shorter.
template <class OnSpan>
void split_lengths(size_t length, std::string_view text, OnSpan on_span) {
  size_t begin = 0, at = 0, count = 0;
  for_each_character(text, [&](uint32_t, std::string_view bytes) {
    at += bytes.size();
    if (++count < length) return;
    on_span(begin, at, false);
    begin = at;
    count = 0;
  });
  if (begin < at) on_span(begin, at, false);
}

}  // namespace te::text
