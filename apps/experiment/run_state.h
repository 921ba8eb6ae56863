// What a run's folder says about how far it is: state.json, which te-experiment writes, and loss.csv, which te-train
// writes.
#pragma once

#include <cstdint>
#include <string>

#include "experiment/plan.h"

namespace te::experiment {

enum class Stage : uint8_t { waiting, running, interrupted, failed, diverged, finished };
std::string_view to_string(Stage stage);

/// Of a run that has finished: its evaluation. `diverged` does not occur.
struct EvaluationState {
  Stage stage = Stage::waiting;
  std::string request;  ///< what was asked, see request_text()
  double seconds = 0;
  std::string reason;  ///< why it failed
};

/// state.json; what is not in it is as in a run that has not begun.
struct RunState {
  Stage stage = Stage::waiting;
  int64_t attempts = 0;  ///< starts so far, all calls of te-experiment together
  int exit_code = 0;     ///< of the last attempt
  double seconds = 0;    ///< of all attempts
  int64_t process = 0;   ///< while it runs
  std::string reason;    ///< why it failed
  EvaluationState evaluation;
};
RunState read_state(const Run& run);
void write_state(const Run& run, const RunState& state);

/// The last line of loss.csv; step 0 before there is one.
struct RunProgress {
  int64_t step = 0;
  double loss = 0, valid_loss = 0, tokens_per_s = 0,
         step_ms = 0;  ///< valid_loss: 0 where none is near the end
};
RunProgress read_progress(const Run& run);

/// Makes the run's folder and its config.yaml. A folder that was made with other settings is refused: UserError names
/// the first key that differs.
void prepare_folder(const Run& run);

/// Writes a file under its name only when it is complete. UserError when that fails.
void write_whole(const std::filesystem::path& path, const std::string& text);

}  // namespace te::experiment
