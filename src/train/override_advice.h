// Advises rules for precision.overrides against harmful quantizations. For each linear it chooses the first recipe
// under which none of its operands is harmful. If there is none, it chooses the recipe with the fewest harmful ones and
// runs the GEMMs that read them in BF16.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "train/fp8_inspection.h"

namespace te::train {

struct OverrideAdvice {
  std::vector<std::string> rules;  ///< new ones; empty: nothing is harmful, or nothing helps
  std::string overrides;           ///< value of precision.overrides: the config's rules, then the new ones
  std::string yaml;                ///< `precision` section to paste; empty without rules
  /// The lowest SQNR of all operands, now and with the rules, assuming unchanged values. Infinite if nothing is
  /// quantized any more.
  double worst_now_db = 0, worst_then_db = 0;
};

/// `inspected`: all of the model, in any order. `recipes`: candidates in order of preference. With precision.fp8 off
/// the advice turns it on, with `reference` as the recipe.
OverrideAdvice advise(const std::vector<InspectedQuantization>& inspected,
                      const config::PrecisionConfig& precision, int64_t num_layers,
                      const std::vector<std::string>& recipes, const QuantizationLimits& limits,
                      config::Fp8Recipe reference);

}  // namespace te::train
