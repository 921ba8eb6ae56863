#include "bench/profile.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <string_view>
#include <typeinfo>
#include <utility>

#include "bench/overlap.h"
#include "bench/rates.h"
#include "bench/session.h"
#include "core/clock.h"
#include "core/gpu_models.h"
#include "core/profile.h"
#include "cost/op_cost.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_activation.h"
#include "kernels/moe/grouped_gemm.h"

#ifdef TE_WITH_CUDA
#include "core/cuda_check.h"
#endif

namespace te::bench {
namespace {

// --- time --------------------------------------------------------------------------------------------------

/// Timestamps of one run: CUDA events on a GPU, clock readings on the CPU. Events are reused by the next run.
class Clock {
 public:
  Clock() = default;
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;
  ~Clock() {
#ifdef TE_WITH_CUDA
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
#endif
  }

  size_t mark(const Context& context) {
#ifdef TE_WITH_CUDA
    if (context.is_cuda()) {
      if (used_ == events_.size()) TE_CUDA_CHECK(cudaEventCreate(&events_.emplace_back()));
      TE_CUDA_CHECK(cudaEventRecord(events_[used_], cuda_stream(context)));
      return used_++;
    }
#endif
    times_.push_back(now_seconds());
    return times_.size() - 1;
  }

  /// Milliseconds from one mark to another; waits until the device has passed both.
  double between(size_t from, size_t to) const {
#ifdef TE_WITH_CUDA
    if (used_ > 0) {
      float ms = 0.0f;
      TE_CUDA_CHECK(
          cudaEventSynchronize(events_[to]));  // another CUDA stream may still be busy when the step ends
      TE_CUDA_CHECK(cudaEventElapsedTime(&ms, events_[from], events_[to]));
      return ms;
    }
#endif
    return (times_[to] - times_[from]) * 1e3;
  }

  void restart() {
    used_ = 0;
    times_.clear();
  }

 private:
#ifdef TE_WITH_CUDA
  std::vector<cudaEvent_t> events_;
#endif
  size_t used_ = 0;
  std::vector<double> times_;
};

/// Records every operation of a run.
class Recorder final : public OpObserver {
 public:
  struct Record {
    OpCall call;
    const void* stream = nullptr;
    size_t from = 0, to = 0;  ///< marks of the clock
  };

  void begin(const Context& context, OpCall call) override {
    records_.push_back({std::move(call), context.stream(), clock_.mark(context), 0});
  }
  void end(const Context& context) override { records_.back().to = clock_.mark(context); }

  const std::vector<Record>& records() const { return records_; }
  const Clock& clock() const { return clock_; }
  void restart() {
    records_.clear();
    clock_.restart();
  }

 private:
  Clock clock_;
  std::vector<Record> records_;
};

// --- kinds -------------------------------------------------------------------------------------------------

struct Group {
  std::string_view name;
  std::vector<std::string_view> operations;
};

constexpr std::string_view kOffload = "offload", kCommunication = "communication",
                           kWaitForState = "wait_for_state";

const std::array<Group, 14>& groups() {
  static const std::array<Group, 14> all{{
      {"GEMMs", {"gemm", "gemm_activation_forward", "gemm_activation_backward"}},
      {"grouped GEMMs", {"grouped_gemm", "grouped_wgrad"}},
      {"attention", {"attention_forward", "attention_backward", "attention_decode", "cache_append"}},
      {"norm", {"norm_forward", "norm_backward", "qk_norm_forward", "qk_norm_backward"}},
      {"activation",
       {"activation_forward", "activation_backward", "expert_activation", "expert_activation_backward"}},
      {"routing",
       {"router_gemm", "router_gemm_backward", "router_forward", "router_backward", "router_statistics",
        "router_balance", "router_bias_update", "expert_rows", "limit_experts", "permute", "unpermute",
        "expert_gate_backward", "dispatch_rows", "gather_values", "sent_ranges"}},
      {"quantization",
       {"quantize", "quantize_experts", "count_quantized_experts", "sent_amax", "finalize_expert_scales",
        "quantize_sent", "order_received", "count_sent", "quantize_groups", "quantize_mx", "quantize_nvfp4",
        "transpose_fp8", "cast", "current_scale", "current_scales", "record_current_scale", "bias_gradient"}},
      {"rope", {"rope"}},
      {"elementwise", {"add", "dropout"}},
      {"loss",
       {"cross_entropy", "cross_entropy_statistics", "cross_entropy_from_statistics", "accumulate_sum"}},
      {"embedding", {"embedding_forward", "embedding_backward"}},
      {"optimizer",
       {"zero_granules", "sum_of_squares", "clip_coefficient", "adamw", "muon_momentum", "muon_place",
        "muon_normalize", "muon_combine", "muon_update", "delayed_scale_update", kWaitForState}},
      {kOffload, {}},  // copies on separate CUDA streams, recognized by their label
      {kCommunication,
       {"all_reduce", "all_gather", "all_to_all", "reduce_scatter", "sum_of_ranks", "send", "receive"}},
  }};
  return all;
}

constexpr std::string_view kOther = "copies, fills";

/// The index of an operation's group; groups().size() for operations without a group.
size_t group_of(const OpCall& call) {
  for (size_t i = 0; i < groups().size(); ++i) {
    const auto& names = groups()[i].operations;
    if (std::ranges::find(names, call.name) != names.end()) return i;
    if (groups()[i].name == kOffload && call.label == kOffload) return i;
  }
  return groups().size();
}

std::string_view group_name(size_t index) {
  return index < groups().size() ? groups()[index].name : kOther;
}

/// Offload copies and waits for them do not compute, so they hide no communication.
OpRole role_of(const OpCall& call) {
  const std::string_view group = group_name(group_of(call));
  if (group == kCommunication) return OpRole::communication;
  return group == kOffload || call.name == kWaitForState ? OpRole::neither : OpRole::computes;
}

/// Rows are named by the label for GEMMs (plus a note on a fused activation), by name and label for other labeled
/// operations, and else by name.
std::string row_name(const OpCall& call) {
  const std::string_view name = call.name;
  if (call.label.empty()) return call.name;
  if (name == "gemm") return call.label;
  return name.starts_with("gemm_activation") ? call.label + " + activation"
                                             : call.name + (" (" + call.label + ")");
}

bool has_fp8_operands(const std::any& args) {
  if (const auto* const gemm = std::any_cast<kernels::GroupedGemm>(&args)) return is_fp8(gemm->a.dtype());
  if (const auto* const gemm = std::any_cast<kernels::GroupedWgrad>(&args)) return is_fp8(gemm->a.dtype());
  return false;
}

// --- sums --------------------------------------------------------------------------------------------------

using Rows = std::map<std::pair<size_t, std::string>, ProfileRow>;

void add_call(Rows& rows, const OpCall& call, const TimedOperation& timed) {
  const size_t group = group_of(call);
  ProfileRow& row = rows[{group, row_name(call)}];
  row.group = timed.kind;
  row.name = row_name(call);
  row.calls += 1;
  row.flops += timed.flops;
  row.bytes += timed.bytes;
  row.ms += timed.ms;
  if (has_fp8_operands(call.args)) row.fp8_flops += timed.flops;
  if (!is_problem(call.args)) return;
  const std::string key = problem_key(call.args);
  const auto same = std::ranges::find_if(
      row.problems, [&](const auto& other) { return problem_key(other.problem) == key; });
  if (same != row.problems.end()) {
    same->calls += 1;
  } else {
    row.problems.push_back({call.args, 1, 0});
  }
}

/// One run's operations; time 0 is the start of the earliest. `step`: the context whose CUDA stream gets number 0.
std::vector<TimedOperation> timed_operations(const Recorder& recorder, const Context& step) {
  std::vector<TimedOperation> operations;
  std::map<const void*, int> streams{{step.stream(), 0}};
  double first = 0;
  for (const Recorder::Record& record : recorder.records()) {
    const OpCost cost = cost::op_cost(record.call);
    const int stream = streams.try_emplace(record.stream, static_cast<int>(streams.size())).first->second;
    const double start = recorder.clock().between(recorder.records().front().from, record.from);
    operations.push_back({.kind = std::string(group_name(group_of(record.call))),
                          .name = record.call.name,
                          .label = record.call.label,
                          .group = record.call.group,
                          .role = role_of(record.call),
                          .stream = stream,
                          .start_ms = start,
                          .ms = recorder.clock().between(record.from, record.to),
                          .flops = cost.flops,
                          .bytes = cost.bytes});
    first = std::min(
        first,
        start);  // an operation of another CUDA stream may start earlier than one that was called before it
  }
  for (TimedOperation& operation : operations) operation.start_ms -= first;
  return operations;
}

/// Adds one run's operations to the rows, and its span and busy time to the profile.
void add_run(const Recorder& recorder, const std::vector<TimedOperation>& operations, Rows& rows,
             Profile& profile) {
  std::vector<Interval> intervals;
  for (size_t i = 0; i < operations.size(); ++i) {
    add_call(rows, recorder.records()[i].call, operations[i]);
    intervals.push_back({operations[i].start_ms, operations[i].end_ms()});
  }
  const std::vector<Interval> busy = union_of(std::move(intervals));
  if (busy.empty()) return;
  profile.span_ms += busy.back().to - busy.front().from;
  profile.busy_ms += total_length(busy);
}

/// Milliseconds of a row's FLOPs at the peak rates of a GPU.
double peak_rate_ms(const ProfileRow& row, const GpuModel& gpu) {
  const double fp8 = gpu.fp8 > 0 ? row.fp8_flops / gpu.fp8 : 0;
  return 1e3 * (fp8 + (row.flops - row.fp8_flops) / gpu.bf16);
}

/// Four digits; empty for zero.
std::string number(double value) {
  return value == 0.0 ? "" : fmt::format("{:.4g}", value);
}

/// TFLOP/s if the row has FLOPs, else TB/s, over `ms`.
std::string rate(const ProfileRow& row, double ms) {
  if (ms <= 0.0) return "";
  if (row.flops > 0.0) return fmt::format("{:.3g} TFLOP/s", row.flops / ms / 1e9);
  return row.bytes > 0.0 ? fmt::format("{:.3g} TB/s", row.bytes / ms / 1e9) : "";
}

std::vector<std::string> table_row(const std::string& name, const ProfileRow& row, double run_ms) {
  return {name,
          row.calls == 0 ? "" : fmt::format("{:.0f}", row.calls),
          number(row.flops / 1e12),
          number(row.bytes / 1e9),
          rate(row, row.lower_bound_ms),
          rate(row, row.ms),
          row.lower_bound_ms > 0.0 ? fmt::format("{:.3f}", row.lower_bound_ms) : "",
          fmt::format("{:.3f}", row.ms),
          row.lower_bound_ms > 0.0 ? fmt::format("{:.0f}%", 100.0 * row.lower_bound_ms / row.ms) : "",
          fmt::format("{:.1f}%", 100.0 * row.ms / run_ms)};
}

}  // namespace

double Profile::lower_bound_ms() const {
  double sum = 0;
  for (const ProfileRow& row : rows) sum += row.lower_bound_ms;
  return sum;
}

double Profile::ms() const {
  double sum = 0;
  for (const ProfileRow& row : rows) sum += row.ms;
  return sum;
}

Profile collect_profile(const Context& context, int runs, const std::function<void()>& call,
                        const std::function<void()>& prepare) {
  Profile profile;
  Rows rows;
  Recorder recorder;
  std::vector<std::vector<TimedOperation>> all;
  for (int run = -1; run < runs; ++run) {
    prepare();
    recorder.restart();
    OpObserver::install(&recorder);
    call();
    OpObserver::install(nullptr);
    context.synchronize();
    if (run < 0) continue;
    all.push_back(timed_operations(recorder, context));
    add_run(recorder, all.back(), rows, profile);
  }
  profile.communication = communication_times(all);
  profile.operations = std::move(all.back());
  profile.span_ms /= runs;
  profile.busy_ms /= runs;
  for (auto& [key, row] : rows) {
    for (double* sum : {&row.calls, &row.flops, &row.fp8_flops, &row.bytes, &row.ms}) *sum /= runs;
    for (ProfileRow::Problem& problem : row.problems) problem.calls /= runs;
    profile.rows.push_back(std::move(row));
  }
  return profile;
}

void tune_gemms(const Context& device, const Profile& profile) {
  constexpr double kSeconds = 0.01;  // the search has its own time budget
  const Context context = reopen(device, {.gemm_autotune = GemmAutotune::full});
  // GEMMs with a fused activation have a choice of algorithms only if they run as two kernels.
  const auto is_gemm = [](const std::any& problem) {
    return problem.type() == typeid(kernels::Gemm) ||
           problem.type() == typeid(kernels::GemmActivationForward) ||
           problem.type() == typeid(kernels::GemmActivationBackward);
  };
  for (const ProfileRow& row : profile.rows)
    for (const ProfileRow::Problem& problem : row.problems)
      if (is_gemm(problem.problem)) isolated_ms(context, problem.problem, kSeconds);
}

void add_lower_bounds(const Context& context, Profile& profile, int repeats) {
  profile.copy_bytes_per_s = copy_bandwidth(context, repeats);
  // A GPU's clock takes time to settle under load; on the CPU this only needs to work.
  const double seconds = context.is_cuda() ? 0.2 : 0.01;
  const GpuModel* const gpu = gpu_model(context.info().name);
  std::map<std::string, double> measured;
  for (ProfileRow& row : profile.rows) {
    if (row.group == kCommunication || row.group == kOffload) continue;
    if (row.problems.empty()) {
      row.lower_bound_ms = row.bytes / profile.copy_bytes_per_s * 1e3;
      if (gpu != nullptr) row.lower_bound_ms = std::max(row.lower_bound_ms, peak_rate_ms(row, *gpu));
    }
    for (ProfileRow::Problem& problem : row.problems) {
      const auto [entry, fresh] = measured.try_emplace(problem_key(problem.problem), 0.0);
      if (fresh) entry->second = isolated_ms(context, problem.problem, seconds);
      problem.isolated_ms = entry->second;
      row.lower_bound_ms += problem.calls * problem.isolated_ms;
    }
  }
}

void print_profile(const Profile& profile, double run_ms, const std::string& run_name) {
  std::vector<std::vector<std::string>> table{{"operation", "calls", "TFLOP", "GB", "rate alone", "rate here",
                                               "bound ms", "ms", "share", "of " + run_name}};
  for (size_t i = 0; i < profile.rows.size();) {
    ProfileRow sum;
    std::vector<std::vector<std::string>> lines;
    for (sum.group = profile.rows[i].group; i < profile.rows.size() && profile.rows[i].group == sum.group;
         ++i) {
      const ProfileRow& row = profile.rows[i];
      sum.flops += row.flops;
      sum.bytes += row.bytes;
      sum.ms += row.ms;
      sum.lower_bound_ms += row.lower_bound_ms;
      lines.push_back(table_row("  " + row.name, row, run_ms));
    }
    if (lines.size() > 1) {
      table.push_back(table_row(sum.group, sum, run_ms));
      table.insert(table.end(), lines.begin(), lines.end());
    } else {
      lines.front().front().erase(0, 2);
      table.push_back(lines.front());
    }
  }
  ProfileRow all, gaps;
  all.lower_bound_ms = profile.lower_bound_ms();
  all.ms = profile.ms();
  gaps.ms = std::max(0.0, profile.span_ms - profile.busy_ms);
  table.push_back(table_row("all operations", all, run_ms));
  table.push_back(table_row("between operations", gaps, run_ms));
  print_table(table);
  std::printf(
      "copy bandwidth %.2f TB/s; %s %.3f ms with the profiler, %.3f ms without; speed-of-light time "
      "%.3f ms = %.1f%% of the latter\n\n",
      profile.copy_bytes_per_s / 1e12, run_name.c_str(), profile.span_ms, run_ms, profile.lower_bound_ms(),
      100.0 * profile.lower_bound_ms() / run_ms);
  print_communication(profile.communication, run_ms, run_name);
  std::fflush(stdout);  // also into a pipe, since the next measurement takes long
}

nlohmann::json to_json(const Profile& profile, double run_ms) {
  nlohmann::json rows = nlohmann::json::array();
  for (const ProfileRow& row : profile.rows) {
    nlohmann::json problems = nlohmann::json::array();
    for (const ProfileRow::Problem& problem : row.problems) {
      problems.push_back({{"problem", problem_key(problem.problem)},
                          {"calls", problem.calls},
                          {"isolated_ms", problem.isolated_ms}});
    }
    rows.push_back({{"group", row.group},
                    {"name", row.name},
                    {"calls", row.calls},
                    {"flops", row.flops},
                    {"bytes", row.bytes},
                    {"lower_bound_ms", row.lower_bound_ms},
                    {"ms", row.ms},
                    {"problems", problems}});
  }
  nlohmann::json report = {{"operations", rows},
                           {"copy_bytes_per_s", profile.copy_bytes_per_s},
                           {"lower_bound_ms", profile.lower_bound_ms()},
                           {"operations_ms", profile.ms()},
                           {"span_ms", profile.span_ms},
                           {"busy_ms", profile.busy_ms},
                           {"run_ms", run_ms}};
  if (!profile.communication.rows.empty()) report["communication"] = to_json(profile.communication, run_ms);
  return report;
}

}  // namespace te::bench
