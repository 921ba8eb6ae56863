// --profile of te-bench step and layer: where the time goes, kind by kind, and how far from its floor each is.
//
// A floor is what the device needs at least for the operations as they are called: GEMMs and
// attention at the rate that the same problem reaches by itself (rates.h), everything else its bytes at the
// measured copy bandwidth. All rates are measured in the same process, after the step.
#pragma once

#include <any>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/messages.h"
#include "bench/timeline.h"
#include "core/device.h"

namespace te::bench {

/// One kind of operation. Numbers are those of one run (a step, or a layer's two passes).
struct ProfileRow {
  struct Problem {
    std::any problem;
    double calls = 0;
    double isolated_ms = 0;
  };
  std::string group;  ///< "GEMMs", "attention", "casts", ...
  std::string name;   ///< "linear_fc1 fprop", "norm_forward"
  double calls = 0, flops = 0, bytes = 0;
  double ms = 0;                  ///< on the device, from begin to end
  double floor_ms = 0;            ///< 0 before add_floors, and for communication
  std::vector<Problem> problems;  ///< the distinct problems of GEMMs and attention
};

struct Profile {
  std::vector<ProfileRow> rows;  ///< group by group
  double span_ms = 0;            ///< of one profiled run, from its first operation to its last
  double busy_ms = 0;            ///< part of it in which some operation ran
  double copy_bytes_per_s = 0;
  MessageTimes messages;                   ///< what of this rank's messages other operations hid
  std::vector<TimedOperation> operations;  ///< of the last profiled run, in the order of their calls

  double floor_ms() const;
  double ms() const;  ///< sum of the operations: more than busy_ms where streams overlap
};

/// Runs `call` under the profiler, `runs` times after one that does not count. Each operation is enclosed by
/// two events of its stream (CPU: clock readings), which costs a microsecond or two an operation: compare
/// span_ms with a run without. `prepare` runs before each call and is not recorded.
Profile collect_profile(
    const Context& context, int runs, const std::function<void()>& call,
    const std::function<void()>& prepare = [] {});

/// Searches thoroughly (GemmAutotune::full) for the algorithms of the GEMMs in the profile, which contexts that have
/// not met a GEMM yet then take from the file of choices. To be called while the memory of what was profiled is
/// free: in a device that is full there is none to time them in.
void tune_gemms(const Context& device, const Profile& profile);

/// Measures the device's rates and fills in the floors. Wants memory for each problem's operands: call it
/// when the model is gone.
void add_floors(const Context& context, Profile& profile, int repeats);

/// The table; run_ms: one run without the profiler, run_name: "step" or "layer".
void print_profile(const Profile& profile, double run_ms, const std::string& run_name);

nlohmann::json to_json(const Profile& profile, double run_ms);

}  // namespace te::bench
