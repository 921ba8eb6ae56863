// The metrics of a step and their writers: console (console.h), loss.csv, metrics.jsonl and TensorBoard
// (tensorboard.h).
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/device.h"
#include "fp8/scale_table.h"
#include "train/log_file.h"
#include "train/routing.h"
#include "train/task_results.h"

namespace te::train {

/// Mean over `counted` tokens; NaN without tokens, as 0 would look like the best loss.
double mean_loss(double sum, int64_t counted);

/// Mean loss over the counted tokens of a validation set.
struct SetLoss {
  std::string name;
  double loss = 0;
};

/// Mean loss over the training samples of one dataset of a blend.
struct SourceLoss {
  std::string source;
  double loss = 0;     ///< NaN without tokens
  int64_t tokens = 0;  ///< counted in the loss
};

struct StepMetrics {
  int64_t step = 0;              ///< 1-based
  int64_t consumed_samples = 0;  ///< after the step
  int64_t consumed_tokens = 0;
  double loss = 0;                   ///< cross entropy: mean_loss() of the global batch
  std::optional<double> z_loss;      ///< mean z-loss, if enabled
  std::optional<double> valid_loss;  ///< of the first set of data.valid
  std::vector<SetLoss> valid;        ///< of all validation sets, in the config's order
  std::vector<TaskResult> tasks;     ///< results of tasks, if evaluated
  std::vector<SourceLoss> sources;   ///< since the last record (logging.loss_by_source)
  double grad_norm = 0;              ///< before clipping
  double lr = 0;
  double seconds = 0;  ///< wall time of the step
  double tokens_per_s = 0;
  double tflops = 0;                     ///< model TFLOP/s, see flops.h
  std::optional<double> speed_of_light;  ///< share of the step's time (speed_of_light.h)
  bool skipped = false;
  std::optional<double> loss_scale;  ///< of the step, in an FP16 run (loss_scaler.h)
  double next_loss_scale = 0;        ///< of the next step
  bool overflow = false;             ///< skipped, and the loss scale was lowered
  std::optional<bool> in_fp8;        ///< FP8 runs: whether the step ran in FP8 or BF16
  int64_t skipped_total = 0;
  bool spike = false;  ///< the loss is far above earlier ones (loss_spikes.h)
  int64_t spikes_total = 0, rollbacks_total = 0;
  std::vector<std::pair<std::string, double>> fp8_statistics;  ///< summary(), if recorded
  std::vector<LayerRouting> routing;                           ///< of mixtures of experts, if recorded
  std::vector<std::pair<std::string, double>> guard;           ///< Guard::record()
};

/// FP8 health of one operand in the last step. The fractions are NaN if no value was counted.
struct Fp8Health {
  std::string name;
  int layer = 0;
  fp8::OperandRole role = fp8::OperandRole::input;
  DType format = DType::e4m3;
  double amax = 0;       ///< of this step (without a history: of its last microbatch), NaN if unknown
  double scale = 0;      ///< in use for the next step, NaN if unknown
  double saturated = 0;  ///< fraction of values beyond the largest FP8 number
  double flushed = 0;    ///< fraction of non-zero values that underflowed to zero
  /// For an operand that may be requantized: the fraction of its quantizations that were repeated.
  std::optional<double> requantized;
  double values = 0;  ///< number of values counted; 0 in a step without counts
};
/// Copies the scale table's state to the host together with a step's status, so that reading it needs no extra wait.
class Fp8HealthReader {
 public:
  Fp8HealthReader(const Context& context, const fp8::ScaleTable& table);
  /// Launches the copies; read() is valid after the next synchronize of the context.
  void fetch();
  /// Empty if the recipe has no scale table.
  std::vector<Fp8Health> read() const;

 private:
  std::optional<double> requantized_fraction(int index) const;
  const Context& context_;
  const fp8::ScaleTable& table_;
  HostBuffer amax_, scale_, counters_, tensor_states_;
};
/// fetch, wait, read.
std::vector<Fp8Health> read_fp8_health(const Context& context, const fp8::ScaleTable& table);

/// The step of a line of loss.csv or metrics.jsonl: 0 for a header, -1 if it is not a line of the log.
int64_t csv_step(std::string_view line);
int64_t json_step(std::string_view line);
inline constexpr const char *kCsvName = "loss.csv", *kJsonlName = "metrics.jsonl";

struct MetricsOptions {
  std::filesystem::path directory;
  bool tensorboard = false;             ///< an event file
  int64_t first_step = 1;               ///< of this start: events of an earlier start from it on are void
  std::string config;                   ///< YAML, for the event file
  std::vector<std::string> valid_sets;  ///< each has a column in the CSV
  std::vector<TaskResult> tasks;        ///< likewise; Evaluator::names()
  int64_t train_steps = 0;
  bool show_tflops = false;     ///< on the console
  double bf16_peak = 0.0;       ///< FLOP/s of the GPU, for MFU on the console; 0 if unknown
  bool fp8 = false;             ///< GEMMs run in FP8: show FP8 health instead of MFU
  bool fp8_statistics = false;  ///< fp8_statistics() will be called
};

class Console;
class TensorBoard;

class MetricsWriter {
 public:
  /// Opens the files for appending. Their records must be of earlier steps of this run (RunFolder ensures it).
  /// UserError when one cannot be opened.
  explicit MetricsWriter(MetricsOptions options);
  ~MetricsWriter();

  void step(const StepMetrics& metrics, const std::vector<Fp8Health>& fp8, double eta_seconds);
  /// Writes a record to fp8_statistics.jsonl and TensorBoard.
  void fp8_statistics(const nlohmann::json& record);
  /// The run has rolled back and repeats steps from this one on.
  void start_at(int64_t step);

 private:
  void append_csv(const StepMetrics& metrics);
  MetricsOptions options_;
  std::string header_;                     ///< of the CSV
  std::vector<std::string_view> columns_;  ///< of the header
  std::unique_ptr<Console> console_;
  LogFile csv_, jsonl_;
  std::optional<LogFile> statistics_;
  std::unique_ptr<TensorBoard> tensorboard_;
};

}  // namespace te::train
