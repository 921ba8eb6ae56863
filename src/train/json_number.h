// Numbers in the records of a run's logs.
#pragma once

#include <cmath>
#include <nlohmann/json.hpp>

namespace te::train {

/// JSON has no NaN and no infinity; a record that says null is better than one that no reader can parse.
inline nlohmann::json number(double value) {
  return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(nullptr);
}

}  // namespace te::train
