#include "train/metrics.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/log.h"
#include "kernels/quantize/fp8_output.h"
#include "train/flops.h"

namespace te::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCsvHeader =
    "step,consumed_samples,consumed_tokens,loss,valid_loss,grad_norm,lr,tokens_per_s,step_ms,tflops,skipped";

// Keeps the lines of a log whose step is at most `last_step`: what a run that is resumed there would have
// written.
std::string kept_lines(const fs::path& path, int64_t last_step, int64_t (*step_of)(const std::string&)) {
  std::ifstream in(path);
  std::string text;
  for (std::string line; std::getline(in, line);) {
    if (in.eof()) break;  // a line without its newline was cut off by a crash
    const int64_t step = step_of(line);
    if (step >= 0 && step <= last_step) text += line + "\n";
  }
  return text;
}

int64_t csv_step(const std::string& line) {
  if (line == kCsvHeader) return 0;
  char* end = nullptr;
  const long long step = std::strtoll(line.c_str(), &end, 10);
  return end != line.c_str() && *end == ',' ? step : -1;
}

int64_t json_step(const std::string& line) {
  const nlohmann::json record = nlohmann::json::parse(line, nullptr, false);
  return record.is_object() && record.contains("step") && record["step"].is_number_integer()
             ? record["step"].get<int64_t>()
             : -1;
}

std::ofstream open_log(const fs::path& path, const std::string& start) {
  std::ofstream out(path, std::ios::trunc);
  out << start;
  out.flush();
  if (!out)
    user_error("logging.directory: {} cannot be written; check the folder's permissions", path.string());
  return out;
}

// JSON has no NaN; a record that says null is better than one that no reader can parse.
nlohmann::json number(double value) {
  return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(nullptr);
}

}  // namespace

std::string human_time(double seconds) {
  const int64_t total = std::max<int64_t>(0, std::llround(seconds));
  if (total >= 3600) return fmt::format("{}:{:02}:{:02}", total / 3600, total / 60 % 60, total % 60);
  return fmt::format("{:02}:{:02}", total / 60, total % 60);
}

Fp8HealthReader::Fp8HealthReader(const Context& context, const fp8::ScaleTable& table)
    : context_(context),
      table_(table),
      amax_(context, table.last_amax.bytes()),
      scale_(context, table.scale.bytes()),
      counters_(context, table.counters.bytes()) {}

void Fp8HealthReader::fetch() {
  context_.copy_to_host(amax_.as<void>(), table_.last_amax);
  context_.copy_to_host(scale_.as<void>(), table_.scale);
  context_.copy_to_host(counters_.as<void>(), table_.counters);
}

std::vector<Fp8Health> Fp8HealthReader::read() const {
  std::vector<Fp8Health> health;
  for (int i = 0; i < table_.size(); ++i) {
    const fp8::OperandInfo& info = table_.info(i);
    const kernels::Fp8Counters& counters = counters_.as<kernels::Fp8Counters>()[i];
    const double total = std::max<double>(1.0, static_cast<double>(counters.total));
    health.push_back({info.name, info.layer, info.role, info.format, amax_.as<float>()[i],
                      scale_.as<float>()[i], static_cast<double>(counters.saturated) / total,
                      static_cast<double>(counters.flushed) / total});
  }
  return health;
}

std::vector<Fp8Health> read_fp8_health(const Context& context, const fp8::ScaleTable& table) {
  Fp8HealthReader reader(context, table);
  reader.fetch();
  context.synchronize();
  return reader.read();
}

MetricsWriter::MetricsWriter(const config::Config& config, int64_t resumed_step, int64_t mfu_devices)
    : config_(config), show_mfu_(mfu_devices > 0) {
  const fs::path directory = config.logging.directory;
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) user_error("logging.directory: {}: {}", directory.string(), error.message());
  if (!config.logging.csv.empty()) {
    const fs::path path = directory / config.logging.csv;
    std::string start = resumed_step > 0 ? kept_lines(path, resumed_step, csv_step) : "";
    if (!start.starts_with(kCsvHeader)) start = std::string(kCsvHeader) + "\n" + start;
    csv_ = open_log(path, start);
  }
  if (config.logging.jsonl) {
    const fs::path path = directory / "metrics.jsonl";
    jsonl_ = open_log(path, resumed_step > 0 ? kept_lines(path, resumed_step, json_step) : "");
  }
}

void MetricsWriter::console(const StepMetrics& m, const std::vector<Fp8Health>& fp8,
                            double eta_seconds) const {
  std::string line = fmt::format(
      "step {:>{}}/{} | loss {:.4f} | grad norm {:.3f} | lr {:.2e} | {} tokens/s | {:.1f} ms", m.step,
      std::to_string(config_.training.train_steps).size(), config_.training.train_steps, m.loss, m.grad_norm,
      m.lr, static_cast<int64_t>(std::llround(m.tokens_per_s)), m.seconds * 1e3);
  if (show_mfu_) {
    line += fmt::format(" | {:.0f} TFLOP/s", m.tflops);
    // A share of the BF16 peak says nothing about a step whose products run in FP8.
    if (config_.precision.fp8 == config::Fp8Mode::off) {
      line += fmt::format(" ({:.1f} % MFU)", m.tflops * 1e12 / kHopperBf16Peak * 100);
    }
  }
  if (!fp8.empty() && config_.precision.fp8 != config::Fp8Mode::off) {
    const auto worst = std::max_element(fp8.begin(), fp8.end(), [](const Fp8Health& a, const Fp8Health& b) {
      return a.saturated < b.saturated;
    });
    if (worst->saturated > 0) {
      line += fmt::format(" | FP8 saturated {:.1e} ({} {})", worst->saturated, worst->name,
                          role_name(worst->role));
    }
  }
  if (m.valid_loss) line += fmt::format(" | valid loss {:.4f}", *m.valid_loss);
  if (m.skipped) line += fmt::format(" | SKIPPED, not finite ({} so far)", m.skipped_total);
  spdlog::info("{} | ETA {}", line, human_time(eta_seconds));
}

void MetricsWriter::step(const StepMetrics& m, const std::vector<Fp8Health>& fp8, double eta_seconds) {
  console(m, fp8, eta_seconds);
  if (csv_.is_open()) {
    csv_ << fmt::format("{},{},{},{:.7g},{},{:.6g},{:.6g},{:.1f},{:.3f},{:.3f},{}\n", m.step,
                        m.consumed_samples, m.consumed_tokens, m.loss,
                        m.valid_loss ? fmt::format("{:.7g}", *m.valid_loss) : "", m.grad_norm, m.lr,
                        m.tokens_per_s, m.seconds * 1e3, m.tflops, m.skipped ? 1 : 0);
    csv_.flush();
    if (!csv_)
      user_error("logging.directory: {} could not be written; is the disk full?", config_.logging.csv);
  }
  if (!jsonl_.is_open()) return;
  nlohmann::json record = {{"step", m.step},
                           {"consumed_samples", m.consumed_samples},
                           {"consumed_tokens", m.consumed_tokens},
                           {"loss", number(m.loss)},
                           {"grad_norm", number(m.grad_norm)},
                           {"lr", m.lr},
                           {"tokens_per_s", m.tokens_per_s},
                           {"step_ms", m.seconds * 1e3},
                           {"tflops", m.tflops},
                           {"skipped", m.skipped},
                           {"skipped_total", m.skipped_total}};
  if (m.valid_loss) record["valid_loss"] = number(*m.valid_loss);
  for (const Fp8Health& item : fp8) {
    record["fp8"].push_back({{"layer", item.layer},
                             {"linear", item.name},
                             {"role", role_name(item.role)},
                             {"format", dtype_name(item.format)},
                             {"amax", number(item.amax)},
                             {"scale", number(item.scale)},
                             {"saturated", item.saturated},
                             {"flushed", item.flushed}});
  }
  jsonl_ << record.dump() << "\n";
  jsonl_.flush();
  if (!jsonl_) user_error("logging.directory: metrics.jsonl could not be written; is the disk full?");
}

}  // namespace te::train
