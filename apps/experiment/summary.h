// What comes of an experiment: summary.json, and the report made of it.
#pragma once

#include <string>
#include <vector>

#include "experiment/runner.h"

namespace te::experiment {

/// DIRECTORY/summary.json: every variant with its runs, their states and last losses; scripts/compare_loss.py reads it.
void write_summary(const Experiment& experiment, const std::vector<Item>& items);

/// True when there is something to compare: a finished run of the baseline and one of another variant.
bool can_report(const Experiment& experiment, const std::vector<Item>& items);

/// Has scripts/compare_loss.py write DIRECTORY/report, or prints its command where Python or its modules are missing.
void make_report(const Experiment& experiment);

}  // namespace te::experiment
