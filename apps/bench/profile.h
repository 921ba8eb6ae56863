// --profile of te-bench step and layer: time per kind of operation, and its ratio to the speed-of-light time.
//
// That is a lower bound for the operations as they are called: for GEMMs and attention the time of the same
// problem alone (rates.h), for other operations their bytes divided by the measured copy bandwidth; for grouped and
// router GEMMs, if it is longer, the time at the GPU model's peak rate (core/gpu_models.h). Other rates are measured in
// the same process, after the step.
#pragma once

#include <any>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/communication.h"
#include "bench/timeline.h"
#include "core/device.h"

namespace te::bench {

/// One kind of operation. Numbers are per run (a step, or both passes of a layer).
struct ProfileRow {
  struct Problem {
    std::any problem;
    double calls = 0;
    double isolated_ms = 0;
  };
  std::string group;  ///< "GEMMs", "attention", "quantization", ...
  std::string name;   ///< "linear_fc1 fprop", "norm_forward"
  double calls = 0, flops = 0, bytes = 0;
  double fp8_flops = 0;           ///< the part of grouped GEMMs with FP8 operands
  double ms = 0;                  ///< on the device, from start to end
  double lower_bound_ms = 0;      ///< 0 before add_lower_bounds, and for communication
  std::vector<Problem> problems;  ///< the distinct problems of GEMMs and attention
};

struct Profile {
  std::vector<ProfileRow> rows;  ///< group by group
  double span_ms = 0;            ///< of one profiled run, from its first operation to its last
  double busy_ms = 0;            ///< part of it in which at least one operation ran
  double copy_bytes_per_s = 0;
  CommunicationTimes communication;        ///< communication of this rank, hidden and exposed
  std::vector<TimedOperation> operations;  ///< of the last profiled run, in the order of their calls

  double lower_bound_ms() const;
  double ms() const;  ///< sum of the operations: more than busy_ms if CUDA streams overlap
};

/// Runs `call` with the profiler, `runs` times after one warmup. Each operation is enclosed in two events of its CUDA
/// stream (CPU: clock readings), which costs a few microseconds per operation: compare span_ms with a run without the
/// profiler. `prepare` runs before each call and is not recorded.
Profile collect_profile(
    const Context& context, int runs, const std::function<void()>& call,
    const std::function<void()>& prepare = [] {});

/// Searches (GemmAutotune::full) for the algorithms of the GEMMs in the profile and saves them to the algorithm cache,
/// from which contexts without a choice for a GEMM take them. Call it after the profiled model is freed: timing the
/// candidates needs device memory.
void tune_gemms(const Context& device, const Profile& profile);

/// Measures the device's rates and sets the lower bounds. It needs memory for each problem's operands: call it after
/// the model is freed.
void add_lower_bounds(const Context& context, Profile& profile, int repeats);

/// Prints the table. run_ms: time of a run without the profiler; run_name: "step" or "layer".
void print_profile(const Profile& profile, double run_ms, const std::string& run_name);

nlohmann::json to_json(const Profile& profile, double run_ms);

}  // namespace te::bench
