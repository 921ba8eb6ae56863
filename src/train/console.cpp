#include "train/console.h"

#include <algorithm>
#include <cmath>

#include "core/log.h"
#include "core/terminal.h"
#include "fp8/scale_table.h"
#include "kernels/quantize/fp8_output.h"
#include "train/remaining_time.h"

namespace te::train {
namespace {

/// Four decimals if they fit.
std::string short_number(double value) {
  if (!std::isfinite(value)) return fmt::format("{}", value);
  return std::abs(value) < 1000 ? fmt::format("{:.4f}", value) : fmt::format("{:.5g}", value);
}

/// "950", "1.23M", "4.56B".
std::string short_count(double value) {
  if (value < 1e5) return fmt::format("{:.0f}", value);
  if (value < 1e6) return fmt::format("{:.0f}K", value / 1e3);
  if (value < 1e9) return fmt::format("{:.2f}M", value / 1e6);
  return value < 1e12 ? fmt::format("{:.2f}B", value / 1e9) : fmt::format("{:.3f}T", value / 1e12);
}

/// A loss scale: "2^16", or a number if it is not a power of two.
std::string short_scale(double scale) {
  int exponent = 0;
  return std::frexp(scale, &exponent) == 0.5 ? fmt::format("2^{}", exponent - 1)
                                             : fmt::format("{:.4g}", scale);
}

/// The operand with the highest saturated fraction; null if no values were counted.
const Fp8Health* most_saturated(const std::vector<Fp8Health>& fp8) {
  const Fp8Health* worst = nullptr;
  for (const Fp8Health& item : fp8)
    if (item.values > 0 && (worst == nullptr || worst->saturated < item.saturated)) worst = &item;
  return worst;
}

/// "acc 0.2875 ± 0.0143, acc_norm 0.3125 ± 0.0147"
std::string metrics_text(const TaskResult& task) {
  std::string text;
  for (const TaskMetric& metric : task.metrics) {
    text += fmt::format("{}{} {}{}", text.empty() ? "" : ", ", metric.name, short_number(metric.value),
                        metric.error ? " ± " + short_number(*metric.error) : "");
  }
  return text;
}

}  // namespace

std::vector<Cell> step_cells(const StepMetrics& m, const MetricsOptions& options,
                             const std::vector<Fp8Health>& fp8, double eta_seconds) {
  const std::string total = std::to_string(options.train_steps);
  const int step_width = std::max(5, 2 * static_cast<int>(total.size()) + 1);
  std::vector<Cell> cells;
  cells.push_back({"step", step_width, 0, fmt::format("{}/{}", m.step, total)});
  cells.push_back(
      {"done", 4, 6,
       fmt::format("{:.0f}%", 100.0 * static_cast<double>(m.step) /
                                  static_cast<double>(std::max<int64_t>(options.train_steps, 1)))});
  cells.push_back({"tokens", 7, 9, short_count(static_cast<double>(m.consumed_tokens))});
  cells.push_back({"loss", 7, 0, short_number(m.loss)});
  cells.push_back({"grad norm", 9, 2, short_number(m.grad_norm)});
  cells.push_back({"lr", 8, 3, fmt::format("{:.2e}", m.lr)});
  cells.push_back({"tokens/s", 8, 1, fmt::format("{:.0f}", m.tokens_per_s)});
  cells.push_back({"ms/step", 8, 4, fmt::format("{:.1f}", m.seconds * 1e3)});
  if (options.show_tflops) {
    cells.push_back({"TFLOP/s", 7, 6, fmt::format("{:.0f}", m.tflops)});
    // MFU relates to the BF16 peak, which is meaningless for FP8 GEMMs.
    if (!options.fp8 && options.bf16_peak > 0)
      cells.push_back({"MFU %", 5, 7, fmt::format("{:.1f}", m.tflops * 1e12 / options.bf16_peak * 100)});
  }
  if (m.speed_of_light) cells.push_back({"SOL %", 5, 5, fmt::format("{:.1f}", 100.0 * *m.speed_of_light)});
  if (options.fp8) {
    const Fp8Health* worst = most_saturated(fp8);
    cells.push_back({"saturated", 9, 8, worst == nullptr ? "" : fmt::format("{:.1e}", worst->saturated)});
  }
  if (m.loss_scale) cells.push_back({"scale", 8, 8, short_scale(*m.loss_scale)});
  cells.push_back({"ETA", 8, 0, time_left(eta_seconds)});
  return cells;
}

std::vector<Cell> fitting(std::vector<Cell> cells, int columns, int& gap) {
  for (;;) {
    int width = -1;
    for (const Cell& cell : cells) width += cell.width + 1;
    const int gaps = static_cast<int>(cells.size()) - 1;
    const auto last = std::ranges::max_element(cells, {}, &Cell::rank);
    if (width <= columns || last->rank == 0) {
      gap = width + gaps <= columns ? 2 : 1;
      return cells;
    }
    cells.erase(last);
  }
}

std::string joined(const std::vector<Cell>& cells, int gap, bool headings) {
  std::string line;
  for (const Cell& cell : cells) {
    if (!line.empty()) line.append(static_cast<size_t>(gap), ' ');
    line += fmt::format("{:>{}}", headings ? cell.heading : cell.text, cell.width);
  }
  return line;
}

void Console::step(const StepMetrics& m, const std::vector<Fp8Health>& fp8, double eta_seconds) {
  const Terminal terminal = console_terminal();
  int gap = 1;
  const std::vector<Cell> cells = fitting(step_cells(m, options_, fp8, eta_seconds),
                                          terminal.columns - log_prefix_columns(terminal.columns), gap);
  const std::string headings = log_prefix_heading(terminal.columns) + joined(cells, gap, true);
  if (headings != headings_ || lines_ >= kHeadingEvery) {
    print_plain(terminal.color ? "\033[1m" + headings + "\033[0m\n" : headings + "\n");
    headings_ = headings;
    lines_ = 0;
  }
  ++lines_;
  log_info("{}", joined(cells, gap, false));
  // A single set needs no name.
  for (const SetLoss& set : m.valid) {
    log_info("step {}: valid{} loss {:.4f} (ppl {:.4g})", m.step, m.valid.size() > 1 ? " " + set.name : "",
             set.loss, std::exp(set.loss));
  }
  for (const TaskResult& task : m.tasks) log_info("step {}: {}: {}", m.step, task.task, metrics_text(task));
  std::string sources;
  for (const SourceLoss& source : m.sources)
    if (source.tokens > 0)
      sources += fmt::format("{}{} {:.4f}", sources.empty() ? "" : ", ", source.source, source.loss);
  if (!sources.empty()) log_info("step {}: loss of {}", m.step, sources);
  if (m.spike) {
    log_warning("step {}: LOSS SPIKE ({} so far{})", m.step, m.spikes_total, m.skipped ? ", SKIPPED" : "");
  } else if (m.overflow) {
    log_info("step {}: gradients overflow FP16, update skipped; the loss scale changes from {} to {}", m.step,
             short_scale(*m.loss_scale), short_scale(m.next_loss_scale));
  } else if (m.skipped) {
    log_warning("step {}: SKIPPED, loss or gradient not finite ({} so far)", m.step, m.skipped_total);
  } else if (std::isnan(m.loss)) {
    log_warning("step {}: none of its tokens counts in the loss", m.step);
  }
  if (options_.fp8 && !fp8.empty()) warn_of_saturation(m.step, fp8);
}

// Warns at most once in ten records, unless the fraction has become ten times larger.
void Console::warn_of_saturation(int64_t step, const std::vector<Fp8Health>& fp8) {
  constexpr int64_t kRecords = 10;
  ++records_;
  const Fp8Health* const most = most_saturated(fp8);
  if (most == nullptr || most->saturated < kWarnSaturated) return;
  const Fp8Health& worst = *most;
  if (warned_of_ > 0 && records_ - warned_at_ < kRecords && worst.saturated < 10 * warned_of_) return;
  warned_of_ = worst.saturated;
  warned_at_ = records_;
  const auto many =
      std::ranges::count_if(fp8, [](const Fp8Health& item) { return item.saturated >= kWarnSaturated; });
  log_warning("step {}: FP8 saturated {:.2g}% of the values of {} {} ({} of {} operands above {:g}%)", step,
              100 * worst.saturated, worst.name, role_name(worst.role), many, fp8.size(),
              100 * kWarnSaturated);
}

}  // namespace te::train
