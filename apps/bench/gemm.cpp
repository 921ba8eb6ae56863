#include "bench/gemm.h"

#include <cstdio>
#include <functional>
#include <memory>

#include "bench/gemm_problems.h"
#include "bench/rates.h"
#include "bench/session.h"
#include "core/error.h"

namespace te::bench {
namespace {

using kernels::Gemm;

constexpr int kCopies = 30;  ///< for the copy bandwidth

/// BF16 without scales, or FP8 with the recipe's scales.
kernels::ScaleLayout scales_of(const GemmOptions& options, bool fp8) {
  using kernels::ScaleLayout;
  if (!fp8) return ScaleLayout::none;
  return options.recipe == "blockwise" ? ScaleLayout::vectors : ScaleLayout::tensor;
}

/// Milliseconds of one GEMM with cuBLASLt's first heuristic candidate and with the chosen algorithm.
struct Times {
  double first = 0, chosen = 0;
};

/// Times all GEMMs with one gemm_autotune mode.
void measure(const Context& device, const GemmOptions& options, const std::vector<Linear>& linears,
             GemmAutotune mode, const std::function<void(size_t, double)>& result) {
  const Context context = reopen(device, {.gemm_autotune = mode});
  // Of one measurement. A GPU's clock takes time to settle under load; on the CPU this only needs to work.
  const double seconds = context.is_cuda() ? 0.2 : 0.01;
  size_t index = 0;
  for (const Linear& linear : linears)
    for (GemmKind pass : {GemmKind::fprop, GemmKind::dgrad, GemmKind::wgrad})
      for (bool fp8 : {false, true})
        result(index++,
               isolated_ms(context, problem(linear, options.tokens, pass, scales_of(options, fp8)), seconds));
}

/// The rows of table and report, in the order of measure().
void show(const GemmOptions& options, const std::vector<Linear>& linears, const std::vector<Times>& times,
          std::vector<std::vector<std::string>>& table, nlohmann::json& rows) {
  size_t index = 0;
  for (const Linear& linear : linears) {
    for (GemmKind pass : {GemmKind::fprop, GemmKind::dgrad, GemmKind::wgrad}) {
      const char* pass_name = kKindNames[static_cast<int>(pass)];
      std::vector<std::string> line{linear.model, fmt::format("{} {}", linear.name, pass_name)};
      const double bf16_ms = times[index].chosen;
      for (bool fp8 : {false, true}) {
        const Times& ms = times[index++];
        const Gemm args = problem(linear, options.tokens, pass, scales_of(options, fp8));
        const double flops = 2.0 * static_cast<double>(linear.out * linear.in * options.tokens);
        const double tflops = flops / ms.chosen / 1e9;
        if (!fp8) {
          const int64_t k = args.trans_a ? args.a.values.dim(0) : args.a.values.dim(1);
          line.push_back(fmt::format("{} x {} x {}", args.out.dim(0), args.out.dim(1), k));
        }
        line.push_back(fmt::format("{:.4f}", ms.first));
        line.push_back(fmt::format("{:.4f}", ms.chosen));
        line.push_back(fmt::format("{:.{}f}", tflops, tflops < 10.0 ? 3 : 1));
        if (fp8) line.push_back(fmt::format("{:.2f}", bf16_ms / ms.chosen));
        rows.push_back({{"model", linear.model},
                        {"linear", linear.name},
                        {"pass", pass_name},
                        {"precision", fp8 ? "fp8" : "bf16"},
                        {"out_features", linear.out},
                        {"in_features", linear.in},
                        {"tokens", options.tokens},
                        {"first_ms", ms.first},
                        {"ms", ms.chosen},
                        {"tflops", tflops}});
      }
      table.push_back(line);
    }
  }
}

/// The --autotune that applies. The CPU has one algorithm per GEMM.
std::string autotune_on(const Context& context, const GemmOptions& options) {
  if (context.is_cuda() || options.autotune == "off") return options.autotune;
  if (options.autotune_given)
    user_error("--autotune {}: the CPU has no GEMM algorithms to choose from; leave it out",
               options.autotune);
  return "off";
}

void run(const GemmOptions& options, parallel::World& world) {
  refuse_ranks(world, "gemm");
  if (options.tokens % 16 != 0) user_error("--tokens {}: must be a multiple of 16 (FP8)", options.tokens);
  const std::vector<Linear> linears = linears_of(options.model);
  check_report(options.common);
  const Context context = open_device(options.common.device);
  const std::string autotune = autotune_on(context, options);
  nlohmann::json report = report_head(context);
  const double bandwidth = copy_bandwidth(context, kCopies);
  report["copy_bytes_per_s"] = bandwidth;
  report["autotune"] = autotune;
  report["gemm"] = nlohmann::json::array();
  std::printf(
      "%s, %lld tokens; \"first\": cuBLASLt's first heuristic candidate; \"ms\": with gemm_autotune %s\n",
      context.info().name.c_str(), static_cast<long long>(options.tokens), autotune.c_str());
  std::printf("device copy: %.2f TB/s (read + written)\n\n", bandwidth / 1e12);

  std::vector<Times> times(linears.size() * 6);
  measure(context, options, linears, GemmAutotune::off,
          [&](size_t i, double ms) { times[i].first = times[i].chosen = ms; });
  if (autotune != "off") {
    measure(context, options, linears, mode_of(autotune), [&](size_t i, double ms) { times[i].chosen = ms; });
  }
  std::vector<std::vector<std::string>> table{
      {"model", "GEMM", "m x n x k", "BF16 first", "ms", "TFLOP/s", "FP8 first", "ms", "TFLOP/s", "speedup"}};
  show(options, linears, times, table, report["gemm"]);
  print_table(table);
  write_report(options.common, report);
}

}  // namespace

void add_gemm_command(CLI::App& app, parallel::World& world) {
  const auto options = std::make_shared<GemmOptions>();
  CLI::App* command =
      app.add_subcommand("gemm", "GEMMs of the linear layers of three models, in BF16 and FP8");
  options->common.add_to(*command, false);
  command->add_option("--tokens", options->tokens, "tokens (rows of the activations)")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--model", options->model, "llama7b, gpt_4096 or gpt2_124m (default: all)");
  const CLI::Option* const autotune =
      command
          ->add_option("--autotune", options->autotune,
                       "how a GPU's GEMM algorithms are chosen: off, cached, on or full, as "
                       "training.gemm_autotune")
          ->check(CLI::IsMember({"off", "cached", "on", "full"}))
          ->capture_default_str();
  command->add_option("--recipe", options->recipe, "FP8 scales: tensorwise or blockwise")
      ->check(CLI::IsMember({"tensorwise", "blockwise"}))
      ->capture_default_str();
  command->callback([options, autotune, &world] {
    options->autotune_given = autotune->count() > 0;
    run(*options, world);
  });
}

}  // namespace te::bench
