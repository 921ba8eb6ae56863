// Included first in fuzz builds and by clang-tidy: clang before version 15 cannot compile libstdc++'s
// std::source_location.
#pragma once
#if defined(__clang__) && __clang_major__ < 15
#include <cstdint>
namespace std {
struct source_location {
  static constexpr source_location current() noexcept { return {}; }
  constexpr uint_least32_t line() const noexcept { return 0; }
  constexpr uint_least32_t column() const noexcept { return 0; }
  constexpr const char* file_name() const noexcept { return ""; }
  constexpr const char* function_name() const noexcept { return ""; }
};
}  // namespace std
#endif
