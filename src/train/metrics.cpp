#include "train/metrics.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/log.h"
#include "core/strings.h"
#include "kernels/quantize/fp8_output.h"
#include "train/console.h"
#include "train/fp8_statistics.h"
#include "train/json_number.h"
#include "train/tensorboard.h"

namespace te::train {
namespace {

constexpr const char* kCsvHeader =
    "step,consumed_samples,consumed_tokens,loss,valid_loss,grad_norm,lr,tokens_per_s,step_ms,tflops,skipped";

std::string loss_column(const std::string& set) {
  return "valid_loss." + set;
}
std::string perplexity_column(const std::string& set) {
  return "valid_perplexity." + set;
}

std::string task_column(const TaskResult& task, const TaskMetric& metric) {
  return fmt::format("task.{}.{}", task.task, metric.name);
}

// A log that a resumed run continues keeps its columns.
std::string header_for(const std::filesystem::path& path, const std::vector<std::string>& sets,
                       const std::vector<TaskResult>& tasks) {
  std::string own = kCsvHeader, found;
  for (const std::string& set : sets) own += "," + loss_column(set) + "," + perplexity_column(set);
  for (const TaskResult& task : tasks)
    for (const TaskMetric& metric : task.metrics) own += "," + task_column(task, metric);
  constexpr uint64_t kLongest = 64 << 10;
  if (File file(path); file.is_open()) found = file.read_at(0, kLongest);
  found.resize(std::min(found.find('\n'), found.size()));
  if (found.empty() || csv_step(found) != 0 || found == own) return own;
  log_warning("{}: keeps its columns; validation sets or tasks have changed", path.string());
  return found;
}

}  // namespace

int64_t csv_step(std::string_view line) {
  if (line.starts_with(kCsvHeader)) return 0;
  const size_t comma = line.find(',');
  int64_t step = -1;
  const auto [end, error] = std::from_chars(line.data(), line.data() + std::min(comma, line.size()), step);
  return comma != line.npos && error == std::errc() && end == line.data() + comma ? step : -1;
}

int64_t json_step(std::string_view line) {
  const nlohmann::json record = try_parse_json(line);
  return record.is_object() && record.contains("step") && record["step"].is_number_integer()
             ? record["step"].get<int64_t>()
             : -1;
}

double mean_loss(double sum, int64_t counted) {
  return counted > 0 ? sum / static_cast<double>(counted) : std::numeric_limits<double>::quiet_NaN();
}

Fp8HealthReader::Fp8HealthReader(const Context& context, const fp8::ScaleTable& table)
    : context_(context),
      table_(table),
      amax_(context, table.last_amax.bytes()),
      scale_(context, table.scale.bytes()),
      counters_(context, table.counters.bytes()),
      tensor_states_(context, table.tensor_states.bytes()) {}

void Fp8HealthReader::fetch() {
  context_.copy_to_host(amax_.as<void>(), table_.last_amax);
  context_.copy_to_host(scale_.as<void>(), table_.scale);
  context_.copy_to_host(counters_.as<void>(), table_.counters);
  if (table_.tensor_states) context_.copy_to_host(tensor_states_.as<void>(), table_.tensor_states);
}

std::optional<double> Fp8HealthReader::requantized_fraction(int index) const {
  if (!table_.tensor_states) return {};
  const kernels::Fp8TensorState& state = tensor_states_.as<kernels::Fp8TensorState>()[index];
  if (state.quantized == 0) return {};
  return static_cast<double>(state.counted_requantized) / static_cast<double>(state.quantized);
}

std::vector<Fp8Health> Fp8HealthReader::read() const {
  std::vector<Fp8Health> health;
  for (int i = 0; i < table_.size(); ++i) {
    const fp8::OperandInfo& info = table_.info(i);
    const kernels::Fp8Counters& counters = counters_.as<kernels::Fp8Counters>()[i];
    const auto total = static_cast<double>(counters.total);  // 0 / 0 is NaN
    const float scale = scale_.as<float>()[i];
    double amax = amax_.as<float>()[i];
    // Experts with scales of groups record amaxes only when they are counted, which weights are not in each step.
    if (info.role == fp8::OperandRole::weight && amax == 0 && scale == fp8::kUnknownScale)
      amax = std::numeric_limits<double>::quiet_NaN();
    health.push_back({info.linear.name(), info.linear.layer, info.role, info.format, amax,
                      scale == fp8::kUnknownScale ? std::numeric_limits<double>::quiet_NaN() : scale,
                      static_cast<double>(counters.saturated) / total,
                      static_cast<double>(counters.flushed) / total, requantized_fraction(i),
                      static_cast<double>(counters.total)});
  }
  return health;
}

std::vector<Fp8Health> read_fp8_health(const Context& context, const fp8::ScaleTable& table) {
  Fp8HealthReader reader(context, table);
  reader.fetch();
  context.synchronize();
  return reader.read();
}

MetricsWriter::MetricsWriter(MetricsOptions options)
    : options_(std::move(options)),
      header_(header_for(options_.directory / kCsvName, options_.valid_sets, options_.tasks)),
      columns_(split(header_, ',')),
      console_(std::make_unique<Console>(options_)),
      csv_(options_.directory / kCsvName, header_ + "\n"),
      jsonl_(options_.directory / kJsonlName, "") {
  if (options_.fp8_statistics) statistics_.emplace(options_.directory / kFp8StatisticsName, "");
  if (options_.tensorboard)
    tensorboard_ = std::make_unique<TensorBoard>(options_.directory, options_.first_step, options_.config);
}

MetricsWriter::~MetricsWriter() = default;

void MetricsWriter::start_at(int64_t step) {
  csv_.truncated(step - 1, csv_step);
  jsonl_.truncated(step - 1, json_step);
  if (statistics_) statistics_->truncated(step - 1, json_step);
  if (tensorboard_) tensorboard_->start_at(step);
}

void MetricsWriter::fp8_statistics(const nlohmann::json& record) {
  if (statistics_) statistics_->append(dump_json(record) + "\n");
  if (tensorboard_) tensorboard_->add_statistics(record);
}

// The first columns are those of kCsvHeader.
void MetricsWriter::append_csv(const StepMetrics& m) {
  std::string line =
      fmt::format("{},{},{},{:.7g},{},{:.6g},{:.6g},{:.1f},{:.3f},{:.3f},{}", m.step, m.consumed_samples,
                  m.consumed_tokens, m.loss, m.valid_loss ? fmt::format("{:.7g}", *m.valid_loss) : "",
                  m.grad_norm, m.lr, m.tokens_per_s, m.seconds * 1e3, m.tflops, m.skipped ? 1 : 0);
  for (size_t i = split(kCsvHeader, ',').size(); i < columns_.size(); ++i) {
    line += ",";
    for (const SetLoss& set : m.valid) {
      if (columns_[i] == loss_column(set.name)) line += fmt::format("{:.7g}", set.loss);
      if (columns_[i] == perplexity_column(set.name)) line += fmt::format("{:.7g}", std::exp(set.loss));
    }
    for (const TaskResult& task : m.tasks)
      for (const TaskMetric& metric : task.metrics)
        if (columns_[i] == task_column(task, metric) && std::isfinite(metric.value))
          line += fmt::format("{:.7g}", metric.value);
  }
  csv_.append(line + "\n");
}

void MetricsWriter::step(const StepMetrics& m, const std::vector<Fp8Health>& fp8, double eta_seconds) {
  console_->step(m, fp8, eta_seconds);
  append_csv(m);
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
  if (m.speed_of_light) record["speed_of_light"] = *m.speed_of_light;
  if (m.z_loss) record["z_loss"] = number(*m.z_loss);
  if (m.in_fp8) record["in_fp8"] = *m.in_fp8;
  if (m.loss_scale) record["loss_scale"] = *m.loss_scale;
  if (m.valid_loss) record["valid_loss"] = number(*m.valid_loss);
  for (const SetLoss& set : m.valid)
    record["valid"][set.name] = {{"loss", number(set.loss)}, {"perplexity", number(std::exp(set.loss))}};
  for (const TaskResult& task : m.tasks) {
    nlohmann::json& results = record["tasks"][task.task];
    for (const TaskMetric& metric : task.metrics) {
      results[metric.name] = number(metric.value);
      if (metric.error) results[metric.name + "_stderr"] = number(*metric.error);
    }
  }
  for (const SourceLoss& source : m.sources)
    record["sources"][source.source] = {{"loss", number(source.loss)}, {"tokens", source.tokens}};
  for (const auto& [name, value] : m.fp8_statistics) record["fp8_statistics"][name] = number(value);
  for (const LayerRouting& r : m.routing) {
    nlohmann::json& layer = record["experts"][layer_name(r.layer)];
    layer = {{"load_max", number(r.load_max)},
             {"load_min", number(r.load_min)},
             {"entropy", number(r.entropy)},
             {"balance_loss", number(r.balance_loss)},
             {"z_loss", number(r.z_loss)}};
    if (r.dropped) layer["dropped"] = number(*r.dropped);
    if (r.dispatch_rounds > 0) layer["dispatch_rounds"] = number(r.dispatch_rounds);
    if (r.bias_range) layer["bias_range"] = number(*r.bias_range);
  }
  for (const auto& [name, value] : m.guard) record["guard"][name] = number(value);
  if (m.spikes_total > 0) {
    record["spike"] = m.spike;
    record["spikes_total"] = m.spikes_total;
    record["rollbacks_total"] = m.rollbacks_total;
  }
  for (const Fp8Health& item : fp8) {
    record["fp8"].push_back({{"layer", item.layer},
                             {"linear", item.name},
                             {"role", role_name(item.role)},
                             {"format", dtype_name(item.format)},
                             {"amax", number(item.amax)},
                             {"scale", number(item.scale)},
                             {"saturated", number(item.saturated)},
                             {"flushed", number(item.flushed)}});
    if (item.requantized) record["fp8"].back()["recast"] = *item.requantized;
  }
  jsonl_.append(dump_json(record) + "\n");
  if (tensorboard_) tensorboard_->add(record);
}

}  // namespace te::train
