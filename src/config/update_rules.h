// optimizer.groups: learning rates and weight decay of single kinds of parameters, as parameter groups have them in
// other programs. Each text is a rule; later rules take precedence:
//
//   word_embeddings: lr_factor 0.2, weight_decay 0
//   norms, biases: lr_factor 10
//   linear_*: weight_decay 0.05
//
// The text before the colon selects weights by the name of their module (ParameterRole, `*` and `?` as in file names)
// or by kind: embeddings, norms, matrices (of layers); `biases` selects all biases. lr_factor multiplies the scheduled
// learning rate; weight_decay replaces optimizer.weight_decay, also for parameters without.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "core/parameter_id.h"

namespace te::config {

struct UpdateRule {
  std::string text;
  std::vector<std::string> selectors;
  std::optional<double> lr_factor, weight_decay;

  bool selects(const ParameterId& parameter) const;
};

/// UserError, with optimizer.groups and the rule, if a rule is invalid.
std::vector<UpdateRule> update_rules(const OptimizerConfig& optimizer);

}  // namespace te::config
