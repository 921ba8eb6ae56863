// Code that the subcommands of te-bench share: common options, device, timing and report.
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

  /// `repeats_calls`: whether the command has --repeats.
  void add_to(CLI::App& command, bool repeats_calls = true);
};

/// Loads a config of te-train with synthetic data, since benchmarks read no datasets: without the keys of documents
/// and of validation, which need datasets. `overrides` as in te-train.
config::Config load_without_data(const std::string& path, const std::vector<std::string>& overrides);

/// UserError if the job has several ranks, which would all measure the same device. Collective.
void refuse_ranks(parallel::World& world, const char* command);

/// Opens the device under test. UserError if it does not exist.
Context open_device(const std::string& name, const ExecutionOptions& options = {});
/// Opens this rank's device for a run of the config: its own GPU, or the CPU if the config says so or the machine has
/// no GPU. Collective.
Context open_rank_device(const config::Config& config, parallel::World& world);
/// Another context of the same device, with its own CUDA stream and workspace.
Context reopen(const Context& context, const ExecutionOptions& options);

/// Median milliseconds of one call over `repeats` calls, after three warmup calls. Timed with CUDA events around each
/// call on a GPU, with the clock on the CPU. `prepare` runs before each call and is not timed.
double median_ms(
    const Context& context, int repeats, const std::function<void()>& call,
    const std::function<void()>& prepare = [] {});

/// Bytes read plus bytes written per second by a device-to-device copy that is larger than the caches.
double copy_bandwidth(const Context& context, int repeats);

/// Fills memory with values of a normal distribution (standard deviation 1) rounded to the tensor's dtype. With zeros a
/// GPU would draw less power and run at a higher clock.
void fill_random(const Context& context, const Tensor& tensor);

/// Rows of text in aligned columns; the first row is the heading, the first two columns are left-aligned.
void print_table(const std::vector<std::vector<std::string>>& rows);

/// {"device": name}, and with --repeats {"repeats": n}: the first fields of a report.
nlohmann::json report_head(const Context& context);
nlohmann::json report_head(const Context& context, const Options& options);

/// UserError if the file of --json cannot be written: before the benchmarks, which can take long.
void check_report(const Options& options);
/// Writes the report to the file of --json, if given. UserError if it cannot be written.
void write_report(const Options& options, const nlohmann::json& report);

}  // namespace te::bench
