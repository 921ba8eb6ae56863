#include "bench/gemm.h"

#include <algorithm>
#include <cstdio>
#include <memory>

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

struct GemmOptions {
  Options common;
  int64_t tokens = 8192;
  std::string model;
  bool no_autotune = false;
};

/// The three products of a linear as the trainer launches them: fprop and dgrad give BF16, wgrad adds to
/// FP32. FP8 has E4M3 activations and weights and E5M2 gradients; its dgrad and wgrad read transposed copies.
enum class Pass { fprop, dgrad, wgrad };
constexpr const char* kPassNames[] = {"fprop", "dgrad", "wgrad"};

/// Operand memory that all products share: as large as the largest needs.
class Operands {
 public:
  Operands(const Context& context, const std::vector<Linear>& linears, int64_t tokens) : context_(context) {
    int64_t largest = 0, largest_out = 0;
    for (const Linear& linear : linears) {
      const int64_t x = tokens * linear.in, y = tokens * linear.out, w = linear.out * linear.in;
      largest = std::max({largest, x, y, w});
      largest_out = std::max({largest_out, 2 * x, 2 * y, 4 * w});
    }
    const auto elements = static_cast<size_t>(largest);
    a_ = DeviceBuffer(context, elements * 2);
    b_ = DeviceBuffer(context, elements * 2);
    out_ = DeviceBuffer(context, static_cast<size_t>(largest_out));
    scale_ = DeviceBuffer(context, sizeof(float));
    const float one = 1.0f;
    context.copy_to_device({scale_.data(), DType::f32, {1}}, &one);
    context.synchronize();
  }

  /// The product's description with operands filled.
  Gemm prepare(const Linear& linear, int64_t tokens, Pass pass, bool fp8) {
    Gemm args;
    const DType gradient = fp8 ? DType::e5m2 : DType::bf16, value = fp8 ? DType::e4m3 : DType::bf16;
    const DType first = pass == Pass::fprop ? value : gradient;
    int64_t m = tokens, n = linear.out, k = linear.in;
    if (pass == Pass::dgrad) n = linear.in, k = linear.out;
    if (pass == Pass::wgrad) m = linear.out, n = linear.in, k = tokens;
    args.trans_a = pass == Pass::wgrad && !fp8;
    args.trans_b = pass == Pass::fprop || fp8;
    args.a = {a_.data(), first, args.trans_a ? Shape{k, m} : Shape{m, k}};
    args.b = {b_.data(), value, args.trans_b ? Shape{n, k} : Shape{k, n}};
    args.out = {out_.data(), pass == Pass::wgrad ? DType::f32 : DType::bf16, {m, n}};
    args.accumulate = pass == Pass::wgrad;
    if (fp8) {
      args.a_scale_inv = args.b_scale_inv = static_cast<const float*>(scale_.data());
      args.fast_accumulation = pass == Pass::fprop;
    }
    fill_random(context_, args.a);
    fill_random(context_, args.b);
    context_.zero(args.out);
    return args;
  }

 private:
  const Context& context_;
  DeviceBuffer a_, b_, out_, scale_;
};

std::vector<Linear> selected(const GemmOptions& options) {
  std::vector<Linear> linears;
  for (const Linear& linear : kLinears)
    if (options.model.empty() || options.model == linear.model) linears.push_back(linear);
  if (linears.empty()) user_error("--model {}: must be llama7b, gpt_4096 or gpt2_124m", options.model);
  return linears;
}

/// Times one linear; appends its rows to the table and the report, and gives BF16 and FP8 milliseconds.
void measure(const Context& context, const GemmOptions& options, const Linear& linear, Operands& operands,
             std::vector<std::vector<std::string>>& table, nlohmann::json& rows) {
  for (Pass pass : {Pass::fprop, Pass::dgrad, Pass::wgrad}) {
    std::vector<std::string> line{linear.model,
                                  fmt::format("{} {}", linear.name, kPassNames[static_cast<int>(pass)])};
    double bf16_ms = 0.0;
    for (bool fp8 : {false, true}) {
      const Gemm args = operands.prepare(linear, options.tokens, pass, fp8);
      const double ms = median_ms(context, options.common.repeats, [&] { kernels::gemm(context, args); });
      const double tflops = static_cast<double>(kernels::gemm_flops(args)) / (ms * 1e-3) / 1e12;
      if (!fp8) {
        bf16_ms = ms;
        const int64_t k = args.trans_a ? args.a.dim(0) : args.a.dim(1);
        line.push_back(fmt::format("{} x {} x {}", args.out.dim(0), args.out.dim(1), k));
      }
      line.push_back(fmt::format("{:.4f}", ms));
      line.push_back(fmt::format("{:.{}f}", tflops, tflops < 10.0 ? 3 : 1));
      if (fp8) line.push_back(fmt::format("{:.2f}", bf16_ms / ms));
      rows.push_back({{"model", linear.model},
                      {"linear", linear.name},
                      {"pass", kPassNames[static_cast<int>(pass)]},
                      {"precision", fp8 ? "fp8" : "bf16"},
                      {"out_features", linear.out},
                      {"in_features", linear.in},
                      {"tokens", options.tokens},
                      {"ms", ms},
                      {"tflops", tflops}});
    }
    table.push_back(line);
  }
}

void run(const GemmOptions& options) {
  if (options.tokens % 16 != 0) user_error("--tokens {}: must be a multiple of 16 (FP8)", options.tokens);
  const std::vector<Linear> linears = selected(options);
  const Context context = open_device(options.common.device);
  kernels::set_gemm_autotune(!options.no_autotune);

  nlohmann::json report = report_head(context, options.common);
  const double bandwidth = copy_bandwidth(context, options.common.repeats);
  report["copy_bytes_per_s"] = bandwidth;
  report["gemm"] = nlohmann::json::array();
  std::printf("%s, %lld tokens, median of %d\n", context.info().name.c_str(),
              static_cast<long long>(options.tokens), options.common.repeats);
  std::printf("device copy: %.2f TB/s (read + written)\n\n", bandwidth / 1e12);

  Operands operands(context, linears, options.tokens);
  std::vector<std::vector<std::string>> table{
      {"model", "product", "m x n x k", "BF16 ms", "TFLOP/s", "FP8 ms", "TFLOP/s", "speed-up"}};
  for (const Linear& linear : linears) measure(context, options, linear, operands, table, report["gemm"]);
  print_table(table);
  write_report(options.common, report);
}

}  // namespace

void add_gemm_command(CLI::App& app) {
  const auto options = std::make_shared<GemmOptions>();
  CLI::App* command =
      app.add_subcommand("gemm", "Matrix products of the layers of known models, BF16 and FP8");
  options->common.add_to(*command);
  command->add_option("--tokens", options->tokens, "rows of the activations")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--model", options->model, "only this one: llama7b, gpt_4096 or gpt2_124m");
  command->add_flag("--no-autotune", options->no_autotune, "take the first algorithm that cuBLASLt proposes");
  command->callback([options] { run(*options); });
}

}  // namespace te::bench
