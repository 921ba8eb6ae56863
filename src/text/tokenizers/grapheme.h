// Boundaries of Unicode's extended grapheme clusters (UAX 29, rules GB3 to GB11) as Hugging Face's normalizer
// Precompiled finds them. The rules for regional indicators (GB12, GB13) are omitted: their clusters have eight bytes,
// and Precompiled only looks up clusters of less than six.
#pragma once

#include <cstdint>

namespace te::text {

/// The class of a character in the rules, according to the package's Unicode version.
enum class GraphemeClass : uint8_t {
  kOther,
  kControl,  ///< includes carriage return and line feed
  kExtend,
  kLinker,  ///< an extending character that joins consonants (virama)
  kNonJoiner,
  kJoiner,
  kSpacingMark,
  kPrepend,
  kConsonant,
  kPictographic,
  kL,  ///< this and the following: Hangul
  kV,
  kT,
  kLV,
  kLVT,
};

GraphemeClass grapheme_class(uint32_t code_point);

/// Finds the boundaries in a text, one character at a time.
class GraphemeBoundaries {
 public:
  /// Adds the next character; true if a cluster begins with it. kNoCharacter is a boundary.
  bool next(uint32_t code_point);

 private:
  bool joins(uint32_t code_point, GraphemeClass now) const;

  uint32_t previous_ = 0;
  GraphemeClass last_ = GraphemeClass::kControl;
  // 1: the text so far ends with a pictographic character and extending characters; 2: and a joiner.
  int pictographic_ = 0;
  // 1: the text so far ends with a consonant and extending characters; 2: with a linker among them.
  int consonant_ = 0;
};

}  // namespace te::text
