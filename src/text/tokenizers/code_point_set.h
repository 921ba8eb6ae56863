// Sets of characters exactly as the Hugging Face tokenizers package defines them. The components of the package use
// several crates with different Unicode versions, so no other library provides the same sets.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace te::text {

struct CodePointRange {
  uint32_t first, last;  ///< both inclusive
};

class CodePointSet {
 public:
  explicit CodePointSet(std::span<const CodePointRange> ranges);

  /// False above U+10FFFF.
  bool contains(uint32_t code_point) const {
    return code_point < kCodePoints && (bits_[code_point / 64] >> (code_point % 64) & 1) != 0;
  }
  void insert(uint32_t code_point) { bits_[code_point / 64] |= uint64_t{1} << (code_point % 64); }

 private:
  static constexpr uint32_t kCodePoints = 0x110000;
  std::vector<uint64_t> bits_;
};

// The sets are created at the first call and never change.
const CodePointSet& numeric_characters();      ///< Digits
const CodePointSet& punctuation_characters();  ///< Punctuation and BertPreTokenizer
const CodePointSet& rust_word_characters();    ///< \w of Whitespace and of added tokens
const CodePointSet& control_characters();  ///< dropped by BertNormalizer's clean_text; with U+FFFD and U+0000
const CodePointSet& nonspacing_marks();    ///< dropped by BertNormalizer's strip_accents
const CodePointSet& combining_marks();     ///< dropped by StripAccents
const CodePointSet&
inert_characters();  ///< newer than the package's normalization tables, so never normalized
const CodePointSet& white_space_characters();  ///< the property White_Space

/// The lowercase letter of a code point as Lowercase defines it. Not for U+0130, which becomes two characters.
uint32_t small_letter(uint32_t code_point);

}  // namespace te::text
