// What te-experiment has done with a run that has finished: te-generate evaluate on its final checkpoint, into the
// run's folder, where the report looks for it.
#pragma once

#include <string>

#include "experiment/plan.h"
#include "experiment/process.h"
#include "experiment/run_state.h"

namespace te::experiment {

/// Of a run's folder: results, one line of JSON per document, and what te-generate printed.
inline constexpr const char* kResultsName = "evaluate.json";
inline constexpr const char* kItemsName = "evaluate_items.jsonl";
inline constexpr const char* kEvaluationLogName = "evaluate.log";

/// What is asked of every run, as one line. A run is evaluated again when it changes.
std::string request_text(const Evaluation& evaluation);

/// The command for a run in a slot: one rank or, with a launcher, as many as the run had.
Command evaluation_command(const Evaluation& evaluation, const Run& run, const Slot& slot,
                           const std::string& te_generate);

/// Whether both files are there.
bool has_results(const Run& run);

/// How far te-generate is, by the last line of its log: "hellaswag 1200/10042"; empty before it says so.
std::string evaluation_progress(const Run& run);

/// The results in a line: "hellaswag acc_norm 0.2893, lambada_openai acc 0.3301"; of each task the metric that people
/// quote.
std::string results_text(const Run& run);

}  // namespace te::experiment
