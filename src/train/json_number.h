// Numbers in the records of a run's logs.
#pragma once

#include <cmath>
#include <nlohmann/json.hpp>

namespace te::train {

/// JSON has no NaN or infinity: such a number becomes null, so that parsers accept the record.
inline nlohmann::json number(double value) {
  return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(nullptr);
}

}  // namespace te::train
