// Keys of config.json that change neither weights nor logits of any class of architecture.h.
#pragma once

#include <span>
#include <string_view>

namespace te::convert {

/// Sorted. What transformers reads when it generates, saves, trains or classifies, and notes of other programs. A key
/// that is harmless for some classes only is not here: the reader of its class names it (JsonKeys::without_effect).
std::span<const std::string_view> harmless_keys();

}  // namespace te::convert
