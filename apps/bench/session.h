// What the subcommands of te-bench share: the options every one has, the device, timing, and the report.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "config/config.h"
#include "core/device.h"
#include "parallel/world.h"

namespace te::bench {

/// Options of every subcommand.
struct Options {
  std::string device = "auto";  ///< auto, cpu, cuda or cuda:N
  int repeats = 30;
  std::string json;  ///< file for the report, or empty

  void add_to(CLI::App& command);
};

/// A config of te-train without its data, which a benchmark does not read. `overrides` as in te-train.
config::Config load_without_data(const std::string& path, const std::vector<std::string>& overrides);

/// The device under test. UserError when it is not there.
Context open_device(const std::string& name, const ExecutionOptions& options = {});
/// That of this rank of a config's run: its own GPU, or the CPU where the config or the machine says so. Collective.
Context open_rank_device(const config::Config& config, parallel::World& world);
/// Another context of the same device, with a stream and a workspace of its own.
Context reopen(const Context& context, const ExecutionOptions& options);

/// Median milliseconds of one call over `repeats`, after three calls that do not count: CUDA events around
/// each call on a GPU, the clock on the CPU. `prepare` runs before each call and is not timed.
double median_ms(
    const Context& context, int repeats, const std::function<void()>& call,
    const std::function<void()>& prepare = [] {});

/// Bytes read plus bytes written per second by a device-to-device copy too large for any cache.
double copy_bandwidth(const Context& context, int repeats);

/// Fills memory with values of a normal distribution (standard deviation 1) rounded to the tensor's dtype.
/// Real values matter: a GPU runs zeros at a higher clock.
void fill_random(const Context& context, const Tensor& tensor);

/// Rows of text in aligned columns; the first row is the heading, the first two columns are left-aligned.
void print_table(const std::vector<std::vector<std::string>>& rows);

/// {"device": name, "repeats": n}: the head of a report.
nlohmann::json report_head(const Context& context, const Options& options);

/// Writes the report where a file was asked for. UserError when it cannot be written.
void write_report(const Options& options, const nlohmann::json& report);

}  // namespace te::bench
