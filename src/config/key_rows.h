// Helpers to write the rows of the key table (key_table.h). Only for key_rows_*.cpp.
#pragma once

#include <array>

#include "config/config.h"
#include "config/key_table.h"

namespace te::config {

template <class T>
Field as_field(T& value) {
  if constexpr (std::is_enum_v<T>) {
    return EnumField{names_of(value), reinterpret_cast<uint8_t*>(&value)};
  } else {
    return &value;
  }
}

#define TE_KEY(member) #member, [](Config & c) -> Field { return as_field(c.member); }

inline constexpr Range kAny{};
constexpr Range from_to(double low, double high) {
  return {low, high, false, false};
}
constexpr Range at_least(double low) {
  return {.low = low};
}
constexpr Range above(double low) {
  return {.low = low, .open_low = true};
}
/// [0, 1)
inline constexpr Range kFraction{0.0, 1.0, false, true};
/// Limits of steps and sizes, so that their products cannot overflow 64 bits.
inline constexpr double kMaxSteps = 1e9;
inline constexpr double kMaxWidth = 1e6;

/// The rows of one file, in the order of the reference page.
std::span<const Key> model_rows();
std::span<const Key> precision_rows();
std::span<const Key> execution_rows();
std::span<const Key> run_rows();

}  // namespace te::config
