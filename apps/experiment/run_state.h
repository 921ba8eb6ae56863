// The state and progress of a run from its folder: state.json, which te-experiment writes, and run.json and loss.csv,
// which te-train writes.
#pragma once

#include <cstdint>
#include <string>

#include "experiment/plan.h"

namespace te::experiment {

enum class Stage : uint8_t { waiting, running, interrupted, failed, diverged, finished };
std::string_view to_string(Stage stage);

/// Evaluation of a finished run. Stage::diverged does not occur.
struct EvaluationState {
  Stage stage = Stage::waiting;
  std::string request;  ///< the evaluation's arguments, see request_text()
  double seconds = 0;
  std::string reason;  ///< why it failed
};

/// Contents of state.json; missing fields have the values of a run that has not started.
struct RunState {
  Stage stage = Stage::waiting;
  int64_t attempts = 0;  ///< number of starts, over all calls of te-experiment
  int exit_code = 0;     ///< of the last attempt
  double seconds = 0;    ///< of all attempts
  int64_t process = 0;   ///< process id while it runs
  std::string reason;    ///< why it failed
  EvaluationState evaluation;
};
RunState read_state(const Run& run);
void write_state(const Run& run, const RunState& state);

/// How te-train ended by its run.json: Stage::finished or Stage::diverged; else Stage::waiting, as it can be resumed.
Stage read_end(const Run& run);

/// Values of the last line of loss.csv; step 0 if there is none.
struct RunProgress {
  int64_t step = 0;
  double loss = 0, valid_loss = 0, tokens_per_s = 0,
         step_ms = 0;  ///< valid_loss: 0 if the last lines have none
};
RunProgress read_progress(const Run& run);

/// Creates the run's folder and its config.yaml, or updates a config.yaml of an earlier version with equal settings.
/// UserError if the folder was created with other settings; it names the first key that differs.
void prepare_folder(const Run& run);

/// Writes a file atomically, by renaming a complete temporary file. UserError if that fails.
void write_whole(const std::filesystem::path& path, const std::string& text);

}  // namespace te::experiment
