// Results of an experiment: summary.json, and the report.
#pragma once

#include <string>
#include <vector>

#include "experiment/runner.h"

namespace te::experiment {

/// Writes DIRECTORY/summary.json: every variant with its runs, their states and last losses, for
/// scripts/compare_loss.py.
void write_summary(const Experiment& experiment, const std::vector<Item>& items);

/// Whether there is something to compare: a finished run of the baseline and one of another variant.
bool can_report(const Experiment& experiment, const std::vector<Item>& items);

/// Runs scripts/compare_loss.py to write DIRECTORY/report; prints its command if Python or its modules are missing.
void make_report(const Experiment& experiment);

}  // namespace te::experiment
