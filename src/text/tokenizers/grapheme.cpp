#include "text/tokenizers/grapheme.h"

#include "text/tokenizers/code_point_set.h"

namespace te::text {

bool GraphemeBoundaries::joins(uint32_t code_point, GraphemeClass now) const {
  using enum GraphemeClass;
  if (previous_ == '\r' && code_point == '\n') return true;
  if (last_ == kControl || now == kControl) return false;
  switch (now) {
    case kExtend:
    case kLinker:
    case kNonJoiner:
    case kJoiner:
    case kSpacingMark:
      return true;
    default:
      break;
  }
  if (last_ == kPrepend) return true;
  if (now == kConsonant) return consonant_ == 2;
  if (now == kPictographic) return pictographic_ == 2;
  if (now == kV && (last_ == kLV || last_ == kV)) return true;
  if (now == kT && (last_ == kLV || last_ == kV || last_ == kLVT || last_ == kT)) return true;
  return last_ == kL && (now == kL || now == kV || now == kLV || now == kLVT);
}

bool GraphemeBoundaries::next(uint32_t code_point) {
  using enum GraphemeClass;
  const GraphemeClass now = grapheme_class(code_point);
  const bool begins = !joins(code_point, now);
  const bool extends = now == kExtend || now == kLinker || now == kNonJoiner;
  if (now == kPictographic) {
    pictographic_ = 1;
  } else if (now == kJoiner && pictographic_ == 1) {
    pictographic_ = 2;
  } else if (!extends || pictographic_ == 2) {
    pictographic_ = 0;
  }
  if (now == kConsonant) {
    consonant_ = 1;
  } else if (now == kLinker && consonant_ > 0) {
    consonant_ = 2;
  } else if (now != kExtend && now != kJoiner) {
    consonant_ = 0;
  }
  previous_ = code_point;
  last_ = now;
  return begins;
}

}  // namespace te::text
