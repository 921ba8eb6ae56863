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

json this_start(const Context& context, const parallel::Placement& placement,
                const std::map<std::string, std::string>& contents, const ProgramVersion& program) {
  const DeviceInfo device = context.info();
  size_t ranks = 0;
  for (const parallel::HostPlacement& host : placement) ranks += host.ranks.size();
  std::error_code error;
  return {{"time", fmt::format("{:%FT%TZ}", fmt::gmtime(std::time(nullptr)))},
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
          {"data", contents},
          {"libraries", loaded_libraries()},
          {"environment", environment()}};
}

// The starts recorded by the run that this one may resume.
json earlier_starts(const fs::path& path) {
  const FileText file = read_file(path);
  const json record = try_parse_json(file.text);
  return record.is_object() && record.contains("starts") && record["starts"].is_array() ? record["starts"]
                                                                                        : json::array();
}

}  // namespace

void write_run_record(const config::Config& config, const Context& context,
                      const parallel::Placement& placement, const MemoryPlan& plan,
                      const std::map<std::string, std::string>& contents, const ProgramVersion& program) {
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
  record["starts"] = config.checkpoint.resume == "never" ? json::array() : earlier_starts(path);
  record["starts"].push_back(this_start(context, placement, contents, program));
  write_run_file(path, dump_json(record, 2) + "\n");
}

}  // namespace te::train
