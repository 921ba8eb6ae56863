#include "bench/gemm.h"

#include <cstdio>
#include <functional>
#include <memory>

#include "bench/rates.h"
#include "bench/session.h"
#include "core/error.h"
#include "kernels/gemm/gemm.h"

namespace te::bench {
namespace {

using kernels::Gemm;

/// y [tokens, out] = x [tokens, in] W^T.
struct Linear {
  const char* model;
  const char* name;
  int64_t out, in;
};

constexpr Linear kLinears[] = {
    {"llama7b", "qkv", 3 * 4096, 4096},      {"llama7b", "proj", 4096, 4096},
    {"llama7b", "gate+up", 2 * 11008, 4096}, {"llama7b", "down", 4096, 11008},
    {"gpt_4096", "qkv", 3 * 4096, 4096},     {"gpt_4096", "proj", 4096, 4096},
    {"gpt_4096", "fc1", 16384, 4096},        {"gpt_4096", "fc2", 4096, 16384},
    {"gpt2_124m", "qkv", 3 * 768, 768},      {"gpt2_124m", "proj", 768, 768},
    {"gpt2_124m", "fc1", 3072, 768},         {"gpt2_124m", "fc2", 768, 3072},
    {"gpt2_124m", "head", 50304, 768},
};

constexpr double kSeconds = 0.2;  ///< of one measurement

struct GemmOptions {
  Options common;
  int64_t tokens = 8192;
  std::string model;
  std::string autotune = "on";
};

/// The three GEMMs of a linear as the trainer launches them: fprop and dgrad give BF16, wgrad adds to
/// FP32 (a step's first one writes it). FP8 has E4M3 activations and weights and E5M2 gradients; its dgrad and wgrad
/// read transposed copies.
enum class GemmKind { fprop, dgrad, wgrad };
constexpr const char* kKindNames[] = {"fprop", "dgrad", "wgrad"};

/// The GEMM's description, without memory.
Gemm problem(const Linear& linear, int64_t tokens, GemmKind pass, bool fp8) {
  Gemm args;
  const DType gradient = fp8 ? DType::e5m2 : DType::bf16, value = fp8 ? DType::e4m3 : DType::bf16;
  const DType first = pass == GemmKind::fprop ? value : gradient;
  int64_t m = tokens, n = linear.out, k = linear.in;
  if (pass == GemmKind::dgrad) n = linear.in, k = linear.out;
  if (pass == GemmKind::wgrad) m = linear.out, n = linear.in, k = tokens;
  args.trans_a = pass == GemmKind::wgrad && !fp8;
  args.trans_b = pass == GemmKind::fprop || fp8;
  args.a = Tensor{nullptr, first, args.trans_a ? Shape{k, m} : Shape{m, k}};
  args.b = Tensor{nullptr, value, args.trans_b ? Shape{n, k} : Shape{k, n}};
  if (fp8)
    for (kernels::Matrix* matrix : {&args.a, &args.b})
      matrix->scales = {nullptr, DType::f32, {1}}, matrix->layout = kernels::ScaleLayout::tensor;
  args.out = {nullptr, pass == GemmKind::wgrad ? DType::f32 : DType::bf16, {m, n}};
  args.accumulate = pass == GemmKind::wgrad;
  args.fast_accumulation = fp8 && pass == GemmKind::fprop;
  return args;
}

std::vector<Linear> selected(const GemmOptions& options) {
  std::vector<Linear> linears;
  for (const Linear& linear : kLinears)
    if (options.model.empty() || options.model == linear.model) linears.push_back(linear);
  if (linears.empty()) user_error("--model {}: must be llama7b, gpt_4096 or gpt2_124m", options.model);
  return linears;
}

GemmAutotune mode_of(const GemmOptions& options) {
  if (options.autotune == "off") return GemmAutotune::off;
  if (options.autotune == "cached") return GemmAutotune::cached;
  return options.autotune == "on" ? GemmAutotune::on : GemmAutotune::full;
}

/// What is measured of one GEMM: milliseconds with the library's first proposal, and with the choice.
struct Times {
  double first = 0, chosen = 0;
};

/// All GEMMs with one way of choosing.
void measure(const Context& device, const GemmOptions& options, const std::vector<Linear>& linears,
             GemmAutotune mode, const std::function<void(size_t, double)>& result) {
  const Context context = reopen(device, {.gemm_autotune = mode});
  size_t index = 0;
  for (const Linear& linear : linears)
    for (GemmKind pass : {GemmKind::fprop, GemmKind::dgrad, GemmKind::wgrad})
      for (bool fp8 : {false, true})
        result(index++, isolated_ms(context, problem(linear, options.tokens, pass, fp8), kSeconds));
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
        const Gemm args = problem(linear, options.tokens, pass, fp8);
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

void run(const GemmOptions& options) {
  if (options.tokens % 16 != 0) user_error("--tokens {}: must be a multiple of 16 (FP8)", options.tokens);
  const std::vector<Linear> linears = selected(options);
  const Context context = open_device(options.common.device);
  nlohmann::json report = report_head(context, options.common);
  const double bandwidth = copy_bandwidth(context, options.common.repeats);
  report["copy_bytes_per_s"] = bandwidth;
  report["autotune"] = options.autotune;
  report["gemm"] = nlohmann::json::array();
  std::printf("%s, %lld tokens; \"first\": cuBLASLt's first proposal, then gemm_autotune %s\n",
              context.info().name.c_str(), static_cast<long long>(options.tokens), options.autotune.c_str());
  std::printf("device copy: %.2f TB/s (read + written)\n\n", bandwidth / 1e12);

  std::vector<Times> times(linears.size() * 6);
  measure(context, options, linears, GemmAutotune::off,
          [&](size_t i, double ms) { times[i].first = times[i].chosen = ms; });
  if (context.is_cuda() && options.autotune != "off") {
    measure(context, options, linears, mode_of(options), [&](size_t i, double ms) { times[i].chosen = ms; });
  }
  std::vector<std::vector<std::string>> table{{"model", "GEMM", "m x n x k", "BF16 first", "ms", "TFLOP/s",
                                               "FP8 first", "ms", "TFLOP/s", "speed-up"}};
  show(options, linears, times, table, report["gemm"]);
  print_table(table);
  write_report(options.common, report);
}

}  // namespace

void add_gemm_command(CLI::App& app) {
  const auto options = std::make_shared<GemmOptions>();
  CLI::App* command = app.add_subcommand("gemm", "GEMMs of the layers of known models, BF16 and FP8");
  options->common.add_to(*command);
  command->add_option("--tokens", options->tokens, "rows of the activations")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--model", options->model, "only this one: llama7b, gpt_4096 or gpt2_124m");
  command
      ->add_option("--autotune", options->autotune,
                   "off, cached, on or full: how algorithms are chosen, as in training.gemm_autotune")
      ->check(CLI::IsMember({"off", "cached", "on", "full"}))
      ->capture_default_str();
  command->callback([options] { run(*options); });
}

}  // namespace te::bench
