#include "train/inspect_fp8.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/reader.h"
#include "common/output_file.h"
#include "config/recipe_traits.h"
#include "config/validate_device.h"
#include "core/error.h"
#include "core/json.h"
#include "generate/run_config.h"
#include "parallel/launch.h"
#include "train/checkpoint_inspection.h"
#include "train/execution.h"
#include "train/fp8_inspection.h"
#include "train/override_advice.h"

namespace te::apps {
namespace {

using config::Fp8Mode;
using config::Fp8Recipe;
using nlohmann::json;

/// Validates a number of the command line with our own message.
CLI::Validator at_least(double least) {
  return {[least](std::string& text) {
            double value = 0;
            return CLI::detail::lexical_cast(text, value) && value >= least
                       ? ""
                       : fmt::format("{} must be a number of at least {}", text, least);
          },
          "N"};
}

/// The recipe by which operands of a BF16 model are rated. tensorwise is the best that delayed scaling can achieve.
Fp8Recipe reference_of(const std::vector<std::string>& recipes) {
  Fp8Recipe recipe{};
  const bool tensorwise = std::ranges::find(recipes, "tensorwise") != recipes.end();
  config::from_string(tensorwise ? "tensorwise" : recipes.front(), recipe);
  return recipe;
}

void write_json(const std::string& path, const json& report) {
  OutputFile out("--json", path);
  out.write(dump_json(report, 2) + "\n");
  out.finish();
}

struct InspectFp8Arguments {
  CLI::App* command = nullptr;
  std::string checkpoint, device = "auto", json_path;
  train::InspectionOptions options{.recipes = {"tensorwise", "rowwise", "blockwise"}};
  train::QuantizationLimits limits;
  int64_t top = 20;

  void check() const;
};

void InspectFp8Arguments::check() const {
  if (checkpoint.empty()) user_error("--checkpoint PATH is required; see te-train inspect-fp8 --help");
  if (options.recipes.empty()) user_error("--recipes: must name at least one recipe");
}

/// Prints the checkpoint, precision, scales and data.
void print_heading(const checkpoint::Reader& reader, const train::InspectionSetup& setup,
                   const train::Inspection& found, const train::InspectionOptions& options,
                   Fp8Recipe reference) {
  const config::PrecisionConfig& precision = setup.config.precision;
  fmt::print("checkpoint  {} (step {})\n", reader.folder().string(), reader.progress().step);
  if (precision.fp8 == Fp8Mode::off) {
    fmt::print("precision   BF16: the table shows the quantizations of an FP8 run (hybrid, {})\n",
               config::to_string(reference));
  } else {
    fmt::print("precision   FP8 {}, {}{}\n", config::to_string(precision.fp8),
               config::to_string(precision.fp8_recipe), precision.overrides.empty() ? "" : ", overrides");
  }
  if (found.calibrated)
    fmt::print("scales      calibrated with the data: the checkpoint has none for this precision\n");
  std::string data;
  for (const config::DataSource& source : setup.config.data.train) data += " " + source.prefix;
  fmt::print("data       {}: {} microbatch{}, {} tokens\n", data, options.microbatches,
             options.microbatches == 1 ? "" : "es", found.tokens);
}

void print_advice(const train::OverrideAdvice& advice, size_t harmful,
                  const train::QuantizationLimits& limits) {
  fmt::print(
      "\n{} are harmful: SQNR more than {:g} dB below that of normally distributed values (E4M3 {:g} dB, "
      "E5M2 {:g} dB),\nmore than {:g}% saturated, or more than {:g}% underflowed to zero.\n",
      harmful == 0 ? "No quantizations" : fmt::format("{} quantizations (!)", harmful), limits.tolerance_db,
      train::normal_sqnr_db(DType::e4m3), train::normal_sqnr_db(DType::e5m2), 100 * limits.saturated,
      100 * limits.flushed);
  if (advice.rules.empty()) return;
  fmt::print("Lowest SQNR {:.1f} dB; with these overrides, if the values do not change, {}:\n\n{}",
             advice.worst_now_db,
             std::isfinite(advice.worst_then_db) ? fmt::format("{:.1f} dB", advice.worst_then_db)
                                                 : "nothing is quantized",
             advice.yaml);
}

json report_of(const checkpoint::Reader& reader, const train::InspectionSetup& setup,
               const train::Inspection& found, const std::vector<train::InspectedQuantization>& inspected,
               const train::OverrideAdvice& advice, const train::QuantizationLimits& limits) {
  json report = {
      {"checkpoint", reader.folder().string()},
      {"step", reader.progress().step},
      {"fp8", config::to_string(setup.config.precision.fp8)},
      {"recipe", config::to_string(setup.config.precision.fp8_recipe)},
      {"calibrated", found.calibrated},
      {"tokens", found.tokens},
      {"limits",
       {{"tolerance_db", limits.tolerance_db}, {"saturated", limits.saturated}, {"flushed", limits.flushed}}},
      {"operands", json::array()},
      {"rules", advice.rules},
      {"overrides", advice.overrides},
      {"yaml", advice.yaml}};
  for (const train::InspectedQuantization& entry : inspected)
    report["operands"].push_back(train::to_json(entry, limits));
  return report;
}

int run_inspect_fp8(InspectFp8Arguments& a, parallel::World& world) {
  a.check();
  world.run_collectively([&] {
    if (world.size() > 1) {
      user_error(
          "te-train inspect-fp8 runs on one rank, but this job has {}: start it without mpirun; it reads "
          "checkpoints of any layout",
          world.size());
    }
  });
  const checkpoint::Reader reader(a.checkpoint);
  const train::InspectionSetup setup = train::inspection_setup(reader, a.options);
  const Context context = parallel::open_device(world, a.device, train::execution_options(setup.config));
  config::validate_for_device(setup.config, device_caps(context));
  const train::Inspection found = train::inspect_checkpoint(context, reader, setup, a.options);

  const config::PrecisionConfig& precision = setup.config.precision;
  const int64_t layers = setup.config.model.num_layers;
  const Fp8Recipe reference = reference_of(a.options.recipes);
  std::vector<train::InspectedQuantization> inspected =
      train::inspected_quantizations(found.statistics, precision, layers, reference);
  train::sort_worst_first(inspected, a.limits);
  config::PrecisionConfig of_run = precision;
  of_run.dtype = setup.run_dtype;
  const train::OverrideAdvice advice =
      train::advise(inspected, of_run, layers, a.options.recipes, a.limits, reference);
  const auto harmful = std::ranges::count_if(inspected, [&](const train::InspectedQuantization& entry) {
    return train::harmful(entry.own, entry.operand.format, a.limits);
  });
  print_heading(reader, setup, found, a.options, reference);
  const size_t rows = a.top == 0 ? inspected.size() : static_cast<size_t>(a.top);
  fmt::print("\n{} quantizations, worst first; SQNR in dB with the run's and with other recipes:\n\n{}",
             inspected.size(), train::quantization_table(inspected, rows, a.options.recipes, a.limits));
  if (rows < inspected.size()) fmt::print("  ... {} more (--top 0)\n", inspected.size() - rows);
  print_advice(advice, static_cast<size_t>(harmful), a.limits);
  std::fflush(stdout);
  if (!a.json_path.empty())
    write_json(a.json_path, report_of(reader, setup, found, inspected, advice, a.limits));
  return 0;
}

}  // namespace

Command add_inspect_fp8(CLI::App& app) {
  const auto arguments = std::make_shared<InspectFp8Arguments>();
  InspectFp8Arguments& a = *arguments;
  a.command = app.add_subcommand(
      "inspect-fp8",
      "Show the quantization error of a checkpoint's tensors in FP8, and overrides that would help");
  a.command
      ->add_option(
          "--checkpoint", a.checkpoint,
          "te-train checkpoint: step folder, or checkpoint directory or run folder (its latest checkpoint)")
      ->type_name("PATH");
  a.command
      ->add_option("--data", a.options.data,
                   "Dataset, without .bin or .idx (default: the training data of the run)")
      ->type_name("PREFIX");
  a.command->add_option("--batches", a.options.microbatches, "Number of microbatches")
      ->check(at_least(1))
      ->capture_default_str();
  a.command->add_option("--recipes", a.options.recipes, "Recipes to try in addition to the run's own")
      ->delimiter(',')
      ->check(CLI::IsMember(config::stateless_recipes()))
      ->capture_default_str();
  a.command
      ->add_option("--tolerance", a.limits.tolerance_db,
                   "A quantization is harmful if its SQNR is more than this many dB below that of normally "
                   "distributed "
                   "values")
      ->check(at_least(0))
      ->capture_default_str();
  a.command->add_option("--top", a.top, "Number of quantizations in the table; 0: all")
      ->check(at_least(0))
      ->capture_default_str();
  a.command->add_option("--json", a.json_path, "Write all results as JSON to this file")->type_name("FILE");
  a.command
      ->add_option("--set", a.options.overrides,
                   "Override a key of the checkpoint's config, as in --set precision.fp8_recipe=blockwise")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  a.command->add_option("--device", a.device, "auto, cpu or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  a.command->footer(
      "  te-train inspect-fp8 --checkpoint runs/small/checkpoints --data data/bible_valid --batches 4\n\n"
      "docs/how-to/debug-fp8.md explains the table.");
  return {a.command, [arguments](parallel::World& world) { return run_inspect_fp8(*arguments, world); }};
}

}  // namespace te::apps
