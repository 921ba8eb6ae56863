// Learning-rate factors and weight decay by parameter (optimizer.groups, config/update_rules.h).
#pragma once

#include <vector>

#include "config/config.h"
#include "core/device.h"
#include "core/memory_plan.h"
#include "kernels/adamw/adamw.h"
#include "parallel/groups.h"
#include "parameters/parameter_store.h"

namespace te::optim {

class UpdateGroups {
 public:
  UpdateGroups(const config::OptimizerConfig& config, parameters::ParameterStore& parameters)
      : config_(config), parameters_(parameters) {}
  /// Sets Parameter::update_group, before the store is bound.
  void plan(MemoryPlan& plan);
  /// UserError on all ranks if a rule selects no trained parameter of the model.
  void bind(const Context& context, const parallel::Groups& groups);

  /// AdamW::groups; empty without rules.
  const Tensor& adamw() const { return table_; }
  kernels::AdamWGroup of(const parameters::Parameter& parameter) const;

 private:
  void find_settings();
  kernels::AdamWGroup unselected(const parameters::Parameter& parameter) const;

  config::OptimizerConfig config_;
  parameters::ParameterStore& parameters_;
  std::vector<int32_t> selected_;              ///< per rule: parameters of this rank
  std::vector<kernels::AdamWGroup> settings_;  ///< empty without rules
  PlannedTensor table_;                        ///< u8, settings_
  PlannedTensor counts_;                       ///< i32, selected_
};

}  // namespace te::optim
