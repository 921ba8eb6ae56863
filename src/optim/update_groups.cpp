#include "optim/update_groups.h"

#include <algorithm>

#include "config/update_rules.h"
#include "core/error.h"
#include "kernels/common/granule.h"
#include "parallel/watchdog.h"

namespace te::optim {

void UpdateGroups::find_settings() {
  const std::vector<config::UpdateRule> rules = config::update_rules(config_);
  selected_.assign(rules.size(), 0);
  for (parameters::Parameter& parameter : parameters_.parameters()) {
    if (!parameter.trainable) continue;
    kernels::AdamWGroup own = unselected(parameter);
    for (size_t r = 0; r < rules.size(); ++r) {
      if (!rules[r].selects(parameter.id)) continue;
      ++selected_[r];
      if (rules[r].lr_factor) own.lr_factor = static_cast<float>(*rules[r].lr_factor);
      if (rules[r].weight_decay) own.weight_decay = static_cast<float>(*rules[r].weight_decay);
    }
    const auto found = std::ranges::find(settings_, own);
    parameter.update_group = static_cast<uint8_t>(found - settings_.begin());
    if (found == settings_.end()) settings_.push_back(own);
    if (settings_.size() > static_cast<size_t>(kernels::kMaxAdamWGroups))
      user_error("optimizer.groups: the rules make more than {} different settings; use fewer",
                 kernels::kMaxAdamWGroups);
  }
}

void UpdateGroups::plan(MemoryPlan& plan) {
  if (config_.groups.empty()) return;
  find_settings();
  const auto bytes = static_cast<int64_t>(settings_.size() * sizeof(kernels::AdamWGroup));
  plan.add(table_, "update_groups", MemoryKind::optimizer, DType::u8, {bytes});
  plan.add(counts_, "update_groups.selected", MemoryKind::optimizer, DType::i32,
           {static_cast<int64_t>(selected_.size())});
}

void UpdateGroups::bind(const Context& context, const parallel::Groups& groups) {
  if (config_.groups.empty()) return;
  context.copy_to_device(table_, settings_.data());
  context.copy_to_device(counts_, selected_.data());
  const parallel::Watchdog::Guard guard(context, "the counts of optimizer.groups");
  if (groups.world().size() > 1) groups.world().all_reduce(context, counts_, parallel::ReduceOp::sum);
  std::vector<int32_t> counts(selected_.size());
  context.copy_to_host(counts.data(), counts_);
  context.synchronize();
  for (size_t r = 0; r < counts.size(); ++r)
    if (counts[r] == 0)
      user_error("optimizer.groups: \"{}\" selects no parameter that this run trains; leave it out",
                 config_.groups[r]);
}

kernels::AdamWGroup UpdateGroups::of(const parameters::Parameter& parameter) const {
  return settings_.empty() ? unselected(parameter) : settings_[parameter.update_group];
}

kernels::AdamWGroup UpdateGroups::unselected(const parameters::Parameter& parameter) const {
  return {1.0f, parameter.decay ? static_cast<float>(config_.weight_decay) : 0.0f};
}

}  // namespace te::optim
