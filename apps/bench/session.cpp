#include "bench/session.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>

#include "common/output_file.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/float_types.h"
#include "core/json.h"
#include "core/random.h"
#include "parallel/launch.h"
#include "train/execution.h"

#ifdef TE_WITH_CUDA
#include "core/cuda_check.h"
#endif

namespace te::bench {
namespace {

constexpr int kWarmupCalls = 3;
constexpr size_t kCopyBytesGpu = size_t{1} << 30;
constexpr size_t kCopyBytesCpu = size_t{256} << 20;
constexpr int64_t kPatternElements = 1 << 20;

#ifdef TE_WITH_CUDA
std::vector<double> times_on_gpu(const Context& context, int repeats, const std::function<void()>& call,
                                 const std::function<void()>& prepare) {
  const cudaStream_t stream = cuda_stream(context);
  std::vector<cudaEvent_t> events(static_cast<size_t>(2 * repeats));
  for (cudaEvent_t& event : events) TE_CUDA_CHECK(cudaEventCreate(&event));
  for (size_t i = 0; i < events.size(); i += 2) {
    prepare();
    TE_CUDA_CHECK(cudaEventRecord(events[i], stream));
    call();
    TE_CUDA_CHECK(cudaEventRecord(events[i + 1], stream));
  }
  context.synchronize();
  std::vector<double> times;
  for (size_t i = 0; i < events.size(); i += 2) {
    float ms = 0.0f;
    TE_CUDA_CHECK(cudaEventElapsedTime(&ms, events[i], events[i + 1]));
    times.push_back(ms);
  }
  for (cudaEvent_t event : events) cudaEventDestroy(event);
  return times;
}
#endif

std::vector<double> times_on_cpu(int repeats, const std::function<void()>& call,
                                 const std::function<void()>& prepare) {
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) {
    prepare();
    const double begin = now_seconds();
    call();
    times.push_back((now_seconds() - begin) * 1e3);
  }
  return times;
}

/// kPatternElements random values as bytes of the dtype; computed once per dtype.
const std::vector<char>& pattern(DType dtype) {
  static std::map<DType, std::vector<char>> made;
  std::vector<char>& bytes = made[dtype];
  if (!bytes.empty()) return bytes;
  bytes.resize(static_cast<size_t>(kPatternElements) * dtype_size(dtype));
  const auto put = [&](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < kPatternElements; ++i) {
      const T value = from_float<T>(normal(1, stream_of("bench"), static_cast<uint64_t>(i)));
      std::memcpy(bytes.data() + static_cast<size_t>(i) * sizeof(T), &value, sizeof(T));
    }
  };
  TE_CHECK(visit_high_precision(dtype, put) || visit_fp8(dtype, put), "fill_random: dtype {}",
           dtype_name(dtype));
  return bytes;
}

}  // namespace

void Options::add_to(CLI::App& command, bool repeats_calls) {
  command.add_option("--device", device, "auto, cpu, cuda or cuda:N")->capture_default_str();
  if (repeats_calls)
    command.add_option("--repeats", repeats, "number of calls; the median is reported")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
  command.add_option("--json", json, "also write the report to this file")->type_name("FILE");
}

Context open_device(const std::string& name, const ExecutionOptions& options) {
  if (name == "cpu" || (name == "auto" && cuda_device_count() == 0)) return Context::cpu(options);
  if (name == "auto" || name == "cuda") return Context::cuda(0, options);
  const std::string digits = name.rfind("cuda:", 0) == 0 ? name.substr(5) : "";
  const bool good = !digits.empty() && digits.size() <= 4 &&
                    std::ranges::all_of(digits, [](char c) { return c >= '0' && c <= '9'; });
  if (!good) user_error("--device {}: must be auto, cpu, cuda or cuda:N", name);
  return Context::cuda(std::stoi(digits), options);
}

config::Config load_without_data(const std::string& path, const std::vector<std::string>& overrides) {
  std::vector<std::string> all{"data.synthetic=true",
                               "data.train=[]",
                               "data.valid=[]",
                               "data.format=pretrain",
                               "data.overlong=truncate",
                               "data.document_mask=false",
                               "data.eod_mask_loss=false",
                               "training.eval_interval=0",
                               "training.early_stopping_patience=0",
                               "checkpoint.keep_best=0"};
  all.insert(all.end(), overrides.begin(), overrides.end());
  return config::load_config(path, all);
}

void refuse_ranks(parallel::World& world, const char* command) {
  world.run_collectively([&] {
    if (world.size() > 1) user_error("te-bench {} supports one rank only; start it without mpirun", command);
  });
}

Context open_rank_device(const config::Config& config, parallel::World& world) {
  const bool cpu = config.training.device == config::DeviceChoice::cpu;
  return parallel::open_device(world, cpu ? "cpu" : "auto", train::execution_options(config));
}

Context reopen(const Context& context, const ExecutionOptions& options) {
  return context.is_cuda() ? Context::cuda(context.ordinal(), options) : Context::cpu(options);
}

double median_ms(const Context& context, int repeats, const std::function<void()>& call,
                 const std::function<void()>& prepare) {
  for (int i = 0; i < kWarmupCalls; ++i) prepare(), call();
  context.synchronize();
  std::vector<double> times;
#ifdef TE_WITH_CUDA
  if (context.is_cuda()) times = times_on_gpu(context, repeats, call, prepare);
#endif
  if (times.empty()) times = times_on_cpu(repeats, call, prepare);
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

double copy_bandwidth(const Context& context, int repeats) {
  const size_t bytes = context.is_cuda() ? kCopyBytesGpu : kCopyBytesCpu;
  const DeviceBuffer from(context, bytes), to(context, bytes);
  const Shape shape{static_cast<int64_t>(bytes)};
  const Tensor source{from.data(), DType::u8, shape}, destination{to.data(), DType::u8, shape};
  context.fill_bytes(source, 0x5a);
  const double ms = median_ms(context, repeats, [&] { context.copy(destination, source); });
  return 2.0 * static_cast<double>(bytes) / (ms * 1e-3);
}

void fill_random(const Context& context, const Tensor& tensor) {
  const std::vector<char>& bytes = pattern(tensor.dtype);
  const auto slice = [&](size_t begin, size_t count) {
    return Tensor{tensor.as<char>() + begin, DType::u8, {static_cast<int64_t>(count)}};
  };
  size_t filled = std::min(bytes.size(), tensor.bytes());
  context.copy_to_device(slice(0, filled), bytes.data());
  while (filled < tensor.bytes()) {  // doubles the filled part
    const size_t count = std::min(filled, tensor.bytes() - filled);
    context.copy(slice(filled, count), slice(0, count));
    filled += count;
  }
  context.synchronize();
}

void print_table(const std::vector<std::vector<std::string>>& rows) {
  constexpr size_t kLeftAligned = 2;
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - row[i].size(), ' ');
      line += (i > 0 ? "  " : "") + (i < kLeftAligned ? row[i] + padding : padding + row[i]);
    }
    std::printf("%s\n", line.c_str());
  }
}

nlohmann::json report_head(const Context& context) {
  return {{"device", context.info().name}};
}

nlohmann::json report_head(const Context& context, const Options& options) {
  nlohmann::json head = report_head(context);
  head["repeats"] = options.repeats;
  return head;
}

void check_report(const Options& options) {
  if (!options.json.empty()) const apps::OutputFile file("--json", options.json);
}

void write_report(const Options& options, const nlohmann::json& report) {
  if (options.json.empty()) return;
  apps::OutputFile file("--json", options.json);
  file.write(dump_json(report, 2) + "\n");
  file.finish();
}

}  // namespace te::bench
