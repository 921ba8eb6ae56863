#include "train/run_record.h"

#include <fmt/chrono.h>
#include <unistd.h>

#include <array>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <set>
#include <string_view>

#include "config/precision_overrides.h"
#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/strings.h"
#include "train/run_file.h"

extern "C" char**
    environ;  // NOLINT(readability-redundant-declaration): unistd.h has it only with _GNU_SOURCE

namespace te::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

json command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  json words = json::array();
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  return words;
}

// Files of the libraries that affect speed and numerics; their names end in the version.
json loaded_libraries() {
  constexpr std::array kNames = {"libcublas", "libcudnn",    "libnccl.", "libcudart", "libcuda.",
                                 "libmpi.",   "libopenblas", "libgomp.", "libstdc++"};
  std::set<std::string> found;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const size_t path = line.find('/');
    if (path == std::string::npos) continue;
    const std::string file = fs::path(line.substr(path)).filename();
    for (const char* name : kNames)
      if (file.starts_with(name)) found.insert(line.substr(path));
  }
  return found;
}

// Only an explicit list of variables, as an environment may hold secrets.
json environment() {
  constexpr std::array<std::string_view, 13> kPrefixes = {
      "TE_",  "CUDA_", "CUBLAS",       "CUDNN_",       "NCCL_",     "OMP_",           "OPENBLAS_",
      "GOMP", "UCX_",  "SLURM_JOB_ID", "SLURM_NNODES", "OMPI_MCA_", "LD_LIBRARY_PATH"};
  json found = json::object();
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t equals = text.find('=');
    for (const std::string_view prefix : kPrefixes)
      if (text.starts_with(prefix) && equals != std::string_view::npos)
        found[std::string(text.substr(0, equals))] = std::string(text.substr(equals + 1));
  }
  return found;
}

/// Every host of the job: name, ranks ("0-7"), devices, and the link between its GPUs (empty for one GPU).
json hosts(const parallel::Placement& placement) {
  json list = json::array();
  for (const parallel::HostPlacement& host : placement)
    list.push_back({{"host", host.name},
                    {"ranks", number_ranges(host.ranks)},
                    {"devices", host.devices},
                    {"link", host.link}});
  return list;
}

json this_start(const Context& context, const parallel::Placement& placement, const RunInputs& inputs,
                const ProgramVersion& program) {
  const DeviceInfo device = context.info();
  size_t ranks = 0;
  for (const parallel::HostPlacement& host : placement) ranks += host.ranks.size();
  std::error_code error;
  json start = {{"time", fmt::format("{:%FT%TZ}", fmt::gmtime(std::time(nullptr)))},
                {"version", program.version},
                {"commit", program.commit},
                {"compiler", __VERSION__},
                {"command", command_line()},
                {"working_directory", fs::current_path(error).string()},
                {"host", host_name()},
                {"process", ::getpid()},
                {"ranks", ranks},
                {"hosts", hosts(placement)},
                {"device", device.name},
                {"device_memory_bytes", device.memory_bytes},
                {"driver", first_line("/proc/driver/nvidia/version")},
                {"data", inputs.contents},
                {"libraries", loaded_libraries()},
                {"environment", environment()}};
  if (inputs.zero_moments_after > 0) start["zero_moments_after"] = inputs.zero_moments_after;
  return start;
}

json starts_in(const json& record) {
  return record.is_object() && record.contains("starts") && record["starts"].is_array() ? record["starts"]
                                                                                        : json::array();
}

}  // namespace

void write_run_record(const config::Config& config, const Context& context,
                      const parallel::Placement& placement, const MemoryPlan& plan, const RunInputs& inputs,
                      const ProgramVersion& program) {
  const fs::path folder = config.logging.directory, path = folder / "run.json";
  std::error_code error;
  fs::create_directories(folder, error);
  if (error)
    user_error("logging.directory: {}: {}; choose a folder that can be written", folder.string(),
               error.message());
  json record = {{"format", 1},
                 {"config", config::stored_values(config::to_yaml(config))},
                 {"planned_bytes", plan.total_bytes()}};
  if (const std::string emulated = config::emulated_recipes(config.precision, config.model.num_layers);
      !emulated.empty())
    record["emulated"] = emulated;
  record["starts"] =
      config.checkpoint.resume == "never" ? json::array() : starts_in(try_parse_json(read_file(path).text));
  record["starts"].push_back(this_start(context, placement, inputs, program));
  write_run_file(path, dump_json(record, 2) + "\n");
}

void record_end(const config::Config& config, std::string_view end) {
  const fs::path path = fs::path(config.logging.directory) / "run.json";
  json record = try_parse_json(read_file(path).text);
  json starts = starts_in(record);
  if (starts.empty() || !starts.back().is_object()) return;
  starts.back()["end"] = end;
  record["starts"] = starts;
  write_run_file(path, dump_json(record, 2) + "\n");
}

}  // namespace te::train
