// Targets that are not in the vocabulary.
#pragma once

#include <cstdint>

namespace te {

/// Of a token that is not in the loss.
constexpr int32_t kIgnoredTarget = -1;
/// Of a position without a token: it is not in the loss, and experts skip it.
constexpr int32_t kPaddingTarget = -2;

/// Without loss and gradient.
constexpr bool is_ignored(int32_t target) {
  return target == kIgnoredTarget || target == kPaddingTarget;
}

}  // namespace te
