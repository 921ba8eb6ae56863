// Where grapheme clusters end: Unicode's extended grapheme clusters (UAX 29, rules GB3 to GB11) as Hugging Face's
// normalizer Precompiled sees them. Regional indicators (GB12, GB13) are left out: clusters of them are of eight bytes,
// and Precompiled asks for clusters of less than six.
#pragma once

#include <cstdint>

namespace te::text {

/// What a character is for the rules, as the package has it.
enum class GraphemeClass : uint8_t {
  kOther,
  kControl,  ///< carriage return and line feed among them
  kExtend,
  kLinker,  ///< an extender that joins consonants (virama)
  kNonJoiner,
  kJoiner,
  kSpacingMark,
  kPrepend,
  kConsonant,
  kPictographic,
  kL,  ///< Hangul, this and what follows
  kV,
  kT,
  kLV,
  kLVT,
};

GraphemeClass grapheme_class(uint32_t code_point);

/// Finds the boundaries in a text, a character at a time.
class GraphemeBoundaries {
 public:
  /// Takes the next character; true when a cluster begins with it. What is no character parts clusters.
  bool next(uint32_t code_point);

 private:
  bool joins(uint32_t code_point, GraphemeClass now) const;

  uint32_t previous_ = 0;
  GraphemeClass last_ = GraphemeClass::kControl;
  // What the end of the text so far is: 1: a pictographic character and extenders; 2: and a joiner.
  int pictographic_ = 0;
  // 1: a consonant and extenders; 2: with a linker among them.
  int consonant_ = 0;
};

}  // namespace te::text
