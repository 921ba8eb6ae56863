#include "text/tokenizers/code_point_set.h"

#include <utf8proc.h>

#include <algorithm>

#include "text/tokenizers/grapheme.h"
#include "text/tokenizers/utf8.h"

namespace te::text {

namespace {

/// The lowercase letters of code points first to last are those at `offset` from them.
struct SmallLetters {
  uint32_t first, last;
  int32_t offset;
};

#include "text/tokenizers/code_point_sets.inc"

}  // namespace

CodePointSet::CodePointSet(std::span<const CodePointRange> ranges) : bits_(kCodePoints / 64) {
  for (const CodePointRange& range : ranges) {
    for (uint32_t c = range.first; c <= range.last; ++c) insert(c);
  }
}

const CodePointSet& numeric_characters() {
  static const CodePointSet set(kNumeric);
  return set;
}

const CodePointSet& punctuation_characters() {
  static const CodePointSet set(kPunctuation);
  return set;
}

const CodePointSet& rust_word_characters() {
  static const CodePointSet set(kWord);
  return set;
}

const CodePointSet& control_characters() {
  static const CodePointSet set(kControl);
  return set;
}

const CodePointSet& nonspacing_marks() {
  static const CodePointSet set(kNonspacingMark);
  return set;
}

const CodePointSet& combining_marks() {
  static const CodePointSet set(kCombiningMark);
  return set;
}

const CodePointSet& inert_characters() {
  static const CodePointSet set(kInert);
  return set;
}

const CodePointSet& white_space_characters() {
  static const CodePointSet set = [] {
    CodePointSet result({});
    constexpr uint32_t kAboveAll = 0x3001;
    for (uint32_t c = 0; c < kAboveAll; ++c) {
      if (is_white_space(c)) result.insert(c);
    }
    return result;
  }();
  return set;
}

GraphemeClass grapheme_class(uint32_t code_point) {
  constexpr uint32_t kCodePoints = 0x110000, kHangulFirst = 0xAC00, kHangulLast = 0xD7A3, kHangulFinals = 28;
  static const std::vector<GraphemeClass> classes = [] {
    using enum GraphemeClass;
    std::vector<GraphemeClass> result(kCodePoints, kOther);
    const auto set = [&](std::span<const CodePointRange> ranges, GraphemeClass value) {
      for (const CodePointRange& range : ranges)
        std::fill(result.begin() + range.first, result.begin() + range.last + 1, value);
    };
    set(kControlCharacters, kControl);
    set(kExtendCharacters, kExtend);
    set(kLinkerCharacters, kLinker);
    set(kNonJoinerCharacters, kNonJoiner);
    set(kJoinerCharacters, kJoiner);
    set(kSpacingMarkCharacters, kSpacingMark);
    set(kPrependCharacters, kPrepend);
    set(kConsonantCharacters, kConsonant);
    set(kPictographicCharacters, kPictographic);
    set(kLCharacters, kL);
    set(kVCharacters, kV);
    set(kTCharacters, kT);
    for (uint32_t c = kHangulFirst; c <= kHangulLast; ++c)
      result[c] = (c - kHangulFirst) % kHangulFinals == 0 ? kLV : kLVT;
    return result;
  }();
  return code_point < kCodePoints ? classes[code_point] : GraphemeClass::kControl;
}

uint32_t small_letter(uint32_t c) {
  if (c < 0x80) return c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c;
  constexpr uint32_t kFirstAdded = 0x1C89;
  if (c >= kFirstAdded) {
    for (const SmallLetters& letters : kSmallLetters) {
      if (c >= letters.first && c <= letters.last) {
        return static_cast<uint32_t>(static_cast<int32_t>(c) + letters.offset);
      }
    }
  }
  return static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
}

}  // namespace te::text
