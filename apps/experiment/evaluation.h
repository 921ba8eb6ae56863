// Evaluation of finished runs: te-generate evaluate on the final checkpoint, with results in the run's folder, where
// the report finds them.
#pragma once

#include <string>

#include "experiment/plan.h"
#include "experiment/process.h"
#include "experiment/run_state.h"

namespace te::experiment {

/// Files in a run's folder: results, one line of JSON per document, and the output of te-generate.
inline constexpr const char* kResultsName = "evaluate.json";
inline constexpr const char* kItemsName = "evaluate_items.jsonl";
inline constexpr const char* kEvaluationLogName = "evaluate.log";

/// The evaluation's arguments as one line. Runs are evaluated again if it changes.
std::string request_text(const Evaluation& evaluation);

/// The evaluation command of a run in a slot: one rank or, with a launcher, as many ranks as the run.
Command evaluation_command(const Evaluation& evaluation, const Run& run, const Slot& slot,
                           const std::string& te_generate);

/// Whether both result files exist.
bool has_results(const Run& run);
/// Removes both. UserError if that fails.
void remove_results(const Run& run);

/// Progress of te-generate from the last line of its log: "hellaswag 1200/10042"; empty if there is none yet.
std::string evaluation_progress(const Run& run);

/// The results in one line with one metric per task: "hellaswag acc_norm 0.2893, lambada_openai acc 0.3301".
std::string results_text(const Run& run);

}  // namespace te::experiment
