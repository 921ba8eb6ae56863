// What a step tells the world, and the writers that tell it: console, loss.csv, metrics.jsonl.
#pragma once

#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "core/device.h"
#include "fp8/scale_table.h"

namespace te::train {

struct StepMetrics {
  int64_t step = 0;              ///< 1-based
  int64_t consumed_samples = 0;  ///< after the step
  int64_t consumed_tokens = 0;
  double loss = 0;  ///< mean over the counted tokens of the global batch
  std::optional<double> valid_loss;
  double grad_norm = 0;  ///< before clipping
  double lr = 0;
  double seconds = 0;  ///< wall time of the step
  double tokens_per_s = 0;
  double tflops = 0;  ///< model TFLOP/s, see flops.h
  bool skipped = false;
  int64_t skipped_total = 0;
};

/// FP8 health of one operand in the step just taken. The shares are 0 in a step that does not count.
struct Fp8Health {
  std::string name;
  int layer = 0;
  fp8::OperandRole role = fp8::OperandRole::input;
  DType format = DType::e4m3;
  double amax = 0;       ///< of this step
  double scale = 0;      ///< in use for the next step
  double saturated = 0;  ///< share of values beyond the largest FP8 number
  double flushed = 0;    ///< share of non-zero values that became zero
};
/// Copies the table's state to the host beside a step's status, so that looking at it costs no wait of its own.
class Fp8HealthReader {
 public:
  Fp8HealthReader(const Context& context, const fp8::ScaleTable& table);
  /// Launches the copies; read() is valid after the next synchronize of the context.
  void fetch();
  /// Empty when the recipe keeps no table.
  std::vector<Fp8Health> read() const;

 private:
  const Context& context_;
  const fp8::ScaleTable& table_;
  HostBuffer amax_, scale_, counters_;
};
/// fetch, wait, read.
std::vector<Fp8Health> read_fp8_health(const Context& context, const fp8::ScaleTable& table);

class MetricsWriter {
 public:
  /// Opens the files in logging.directory. A fresh run starts them anew; a run resumed after `resumed_step`
  /// steps keeps their records up to that step and goes on behind them.
  MetricsWriter(const config::Config& config, int64_t resumed_step, int64_t mfu_devices);

  void step(const StepMetrics& metrics, const std::vector<Fp8Health>& fp8, double eta_seconds);

 private:
  void console(const StepMetrics& metrics, const std::vector<Fp8Health>& fp8, double eta_seconds) const;
  const config::Config& config_;
  bool show_mfu_;
  std::ofstream csv_, jsonl_;
};

/// "1:02:03" or "04:05".
std::string human_time(double seconds);

}  // namespace te::train
