// Keys of config.json that change neither weights nor logits, whatever the class in architecture.h.
#pragma once

#include <span>
#include <string_view>

namespace te::convert {

/// The keys in sorted order: those that transformers uses for generation, saving, training or classification only, and
/// metadata of other programs. A key that is harmless only for some classes is not in the list; the reader of such a
/// class names it (JsonKeys::without_effect).
std::span<const std::string_view> harmless_keys();

}  // namespace te::convert
