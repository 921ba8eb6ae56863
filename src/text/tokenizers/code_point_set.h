// Sets of characters that Hugging Face tokenizers ask for, as the package has them: its components take them from
// several crates of different Unicode versions, which no other library has.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace te::text {

struct CodePointRange {
  uint32_t first, last;  ///< both are in it
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

// Made when first asked for, never changed afterwards.
const CodePointSet& numeric_characters();      ///< of Digits
const CodePointSet& punctuation_characters();  ///< of Punctuation and BertPreTokenizer
const CodePointSet& rust_word_characters();    ///< \w of Whitespace and of added tokens
const CodePointSet& control_characters();  ///< that BertNormalizer's clean_text drops; with U+FFFD and U+0000
const CodePointSet& nonspacing_marks();    ///< that BertNormalizer's strip_accents drops
const CodePointSet& combining_marks();     ///< that StripAccents drops
const CodePointSet& inert_characters();    ///< newer than the package's normal forms, which leave them alone
const CodePointSet& white_space_characters();  ///< the property White_Space

/// The small letter of a code point as Lowercase has it; U+0130, which becomes two characters, is not for it.
uint32_t small_letter(uint32_t code_point);

}  // namespace te::text
