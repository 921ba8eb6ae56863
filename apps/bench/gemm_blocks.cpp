// te-bench gemm --recipe blockwise: FP8 with scales per 128 values, with cuBLASLt and with te-train's own kernels.
#include <chrono>
#include <cstdio>
#include <numeric>
#include <thread>

#include "bench/gemm_problems.h"
#include "bench/rates.h"
#include "core/error.h"
#include "kernels/gemm/block_scaled.h"

namespace te::bench {
namespace {

using kernels::kBlockScaledKernels;

/// The GPU cools down before a short measurement, which then runs at the highest clock. A long one runs at the clock
/// that the power limit allows.
constexpr std::chrono::milliseconds kShortCoolDown{300};
constexpr double kShortSeconds = 0.02, kLongSeconds = 0.5;

std::string kernel_name(int kernel) {
  return kernel == 0 ? "cuBLASLt" : kBlockScaledKernels[static_cast<size_t>(kernel) - 1];
}

/// Prints a row of the table immediately, since the whole table takes minutes.
void print_row(const std::vector<std::string>& row) {
  std::printf("%-26s %-22s", row[0].c_str(), row[1].c_str());
  for (size_t i = 2; i < row.size(); ++i) std::printf(" %12s", row[i].c_str());
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace

void run_block_scaled(const GemmOptions& options) {
  const Context device = open_device(options.common.device);
  if (!device.is_cuda())
    user_error("--recipe blockwise compares GPU kernels and needs a GPU; on the CPU use --recipe tensorwise");
  std::vector<int> which = options.kernels;
  if (which.empty()) which.resize(kBlockScaledKernels.size() + 1), std::iota(which.begin(), which.end(), 0);
  nlohmann::json report = report_head(device, options.common);
  report["gemm"] = nlohmann::json::array();
  std::printf(
      "%s, %lld tokens, FP8 with scales per 128 values: TFLOP/s cold; power-limited (cuBLASLt: %s)\n\n",
      device.info().name.c_str(), static_cast<long long>(options.tokens), options.autotune.c_str());
  std::vector<std::string> heading{"GEMM", "m x n x k"};
  std::vector<Context> contexts;
  for (const int kernel : which) {
    heading.push_back(kernel_name(kernel));
    contexts.push_back(
        reopen(device, {.gemm_autotune = mode_of(options.autotune), .block_scaled_gemm = kernel}));
  }
  print_row(heading);
  for (const Linear& linear : linears_of(options.model)) {
    for (const GemmKind pass : {GemmKind::fprop, GemmKind::dgrad, GemmKind::wgrad}) {
      const kernels::Gemm args = problem(linear, options.tokens, pass, kernels::ScaleLayout::vectors);
      const char* const pass_name = kKindNames[static_cast<int>(pass)];
      std::vector<std::string> line{
          fmt::format("{} {} {}", linear.model, linear.name, pass_name),
          fmt::format("{} x {} x {}", args.out.dim(0), args.out.dim(1), args.a.cols())};
      for (size_t i = 0; i < which.size(); ++i) {
        const auto tflops = [&](double seconds) {
          return 2.0 * static_cast<double>(linear.out * linear.in * options.tokens) /
                 isolated_ms(contexts[i], args, seconds) / 1e9;
        };
        isolated_ms(contexts[i], args, 0.0);  // chooses the algorithm
        std::this_thread::sleep_for(kShortCoolDown);
        const double cold = tflops(kShortSeconds), power_limited = tflops(kLongSeconds);
        line.push_back(fmt::format("{:.0f}; {:.0f}", cold, power_limited));
        report["gemm"].push_back({{"model", linear.model},
                                  {"linear", linear.name},
                                  {"pass", pass_name},
                                  {"kernel", kernel_name(which[i])},
                                  {"out_features", linear.out},
                                  {"in_features", linear.in},
                                  {"tokens", options.tokens},
                                  {"tflops", cold},
                                  {"sustained_tflops", power_limited}});
      }
      print_row(line);
    }
  }
  write_report(options.common, report);
}

}  // namespace te::bench
