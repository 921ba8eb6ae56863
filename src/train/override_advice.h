// Which rules of precision.overrides would mend the casts that do harm: for a linear the first recipe under which none
// of its casts does any; where there is none the recipe that leaves the fewest, and the GEMMs that read these in BF16.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "train/fp8_inspection.h"

namespace te::train {

struct OverrideAdvice {
  std::vector<std::string> rules;  ///< new ones; empty: nothing does harm, or nothing would help
  std::string overrides;  ///< value of precision.overrides: the config's own rules, and these behind them
  std::string yaml;       ///< section `precision` to be pasted; empty without rules
  /// The lowest SQNR of all casts, now, and under the rules as far as the values stay what they are. Infinite where
  /// nothing is cast any more.
  double worst_now_db = 0, worst_then_db = 0;
};

/// `casts`: all of the model, in any order; `recipes`: that may be chosen, the one to be preferred first. With
/// precision.fp8 off the advice turns it on, with `reference` as the recipe.
OverrideAdvice advise(const std::vector<InspectedCast>& casts, const config::PrecisionConfig& precision,
                      int64_t num_layers, const std::vector<std::string>& recipes, const CastLimits& limits,
                      config::Fp8Recipe reference);

}  // namespace te::train
