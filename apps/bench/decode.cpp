#include "bench/decode.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <vector>

#include "bench/session.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/float_types.h"
#include "core/memory_bandwidth.h"
#include "core/random.h"
#include "generate/decoder.h"
#include "generate/run_config.h"

namespace te::bench {
namespace {

/// Warmup passes, not timed: the first ones launch single kernels and capture the CUDA graph.
constexpr int64_t kWarmupTokens = 8;

struct DecodeOptions {
  Options common;
  std::string config;
  std::vector<std::string> overrides, fp8{"off", "hybrid"}, launches{"ops", "megakernel"};
  std::vector<int64_t> batches{1, 8};
  int64_t prompt = 64, tokens = 256;
};

/// The model of a config, without weights; random_weights() fills them.
class ConfiguredModel final : public generate::ModelSource {
 public:
  ConfiguredModel(const std::string& path, const std::vector<std::string>& overrides) {
    const config::Config config = load_without_data(path, overrides);
    title_ = path;
    model_ = config.model;
    precision_ = config.precision;
  }
};

/// One variant that is measured.
struct Variant {
  std::string fp8, launches;
  int64_t batch;
};

struct Decoded {
  double seconds = 0;  ///< mean time per pass
  int64_t weight_bytes = 0;
  bool megakernel = false;
};

/// Fills the weights with random values (2^20 of them, repeated). Zeros would draw less power.
void random_weights(const Context& context, parameters::ParameterStore& parameters) {
  constexpr int64_t kDrawn = 1 << 20;
  for (const parameters::Parameter& parameter : parameters.parameters()) {
    visit_high_precision(parameter.value.dtype, [&](auto zero) {
      using T = decltype(zero);
      std::vector<T> values(static_cast<size_t>(std::min(kDrawn, parameter.value.numel())));
      for (size_t i = 0; i < values.size(); ++i)
        values[i] = from_float<T>(parameter.init == parameters::Init::ones ? 1.0f : 0.02f * normal(1, 0, i));
      for (int64_t at = 0; at < parameter.value.numel(); at += kDrawn) {
        const int64_t count = std::min(kDrawn, parameter.value.numel() - at);
        context.copy_to_device({parameter.value.as<T>() + at, parameter.value.dtype, {count}}, values.data());
      }
      context.synchronize();  // the host vector must outlive the copies
    });
  }
}

/// Decodes sequences of the same length as one batch: `prompt` tokens first, then one token per pass. Token ids differ
/// between sequences, because equal ones would select the same experts; otherwise the time does not depend on them.
Decoded decode(const DecodeOptions& options, const ConfiguredModel& model, const Variant& variant,
               parallel::World& world, const Context& context) {
  const generate::RunOptions run{.device = options.common.device, .fp8 = variant.fp8};
  const int64_t length = options.prompt + kWarmupTokens + options.tokens;
  const config::Config config =
      generate::run_config(model, run, context, length, generate::kDecoderSequences);
  const parallel::Groups groups = generate::connect(world, context, run);
  generate::Decoder decoder(
      config, groups,
      {.batch = variant.batch,
       .megakernel = variant.launches == "megakernel" ? generate::MegakernelMode::always
                                                      : generate::MegakernelMode::never});
  MemoryPlan plan;
  decoder.plan(plan, context);
  const DeviceBuffer memory = plan.allocate(context);
  decoder.bind(context);
  random_weights(context, decoder.parameters());
  decoder.quantize_weights(context);

  std::vector<int32_t> tokens(static_cast<size_t>(variant.batch * length));
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<int32_t>(philox(1, stream_of("decode"), i).word[0] %
                                     static_cast<uint64_t>(config.model.vocab_size));
  const std::span<const int32_t> all(tokens);
  const auto append = [&](int64_t from, int64_t count) {
    std::vector<generate::Continuation> next;
    for (int64_t sequence = 0; sequence < variant.batch; ++sequence)
      next.push_back(
          {sequence, all.subspan(static_cast<size_t>(sequence * length + from), static_cast<size_t>(count))});
    decoder.append(context, next);  // also copies the logits to the host
  };
  append(0, options.prompt);
  int64_t at = options.prompt;
  for (; at < options.prompt + kWarmupTokens; ++at) append(at, 1);
  const double start = now_seconds();
  for (; at < length; ++at) append(at, 1);
  return {(now_seconds() - start) / static_cast<double>(options.tokens), decoder.weight_bytes(variant.batch),
          decoder.megakernel_passes() > 0};
}

void run(const DecodeOptions& options, parallel::World& world) {
  refuse_ranks(world, "decode");
  check_report(options.common);
  const ConfiguredModel model(options.config, options.overrides);
  const Context context = open_device(options.common.device, {.gemm_autotune = GemmAutotune::off});
  const auto bandwidth = static_cast<double>(memory_bandwidth(context));
  nlohmann::json report = report_head(context);
  std::vector<std::vector<std::string>> table{
      {"weights", "launches", "sequences", "ms per pass", "tokens/s", "GB read", "% of bandwidth"}};
  for (const int64_t batch : options.batches) {
    for (const std::string& fp8 : options.fp8) {
      for (const std::string& launches : options.launches) {
        const Decoded made = decode(options, model, {fp8, launches, batch}, world, context);
        const double rate = static_cast<double>(batch) / made.seconds,
                     gigabytes = static_cast<double>(made.weight_bytes) * 1e-9,
                     share = bandwidth > 0 ? gigabytes * 1e9 / made.seconds / bandwidth : 0.0;
        table.push_back({fp8 == "off" ? (context.is_cuda() ? "BF16" : "FP32") : "FP8 " + fp8,
                         made.megakernel ? "megakernel" : "ops", std::to_string(batch),
                         fmt::format("{:.3f}", made.seconds * 1e3), fmt::format("{:.1f}", rate),
                         fmt::format("{:.2f}", gigabytes),
                         bandwidth > 0 ? fmt::format("{:.1f}", share * 100) : ""});
        report["decode"].push_back({{"config", options.config},
                                    {"fp8", fp8},
                                    {"asked", launches},
                                    {"megakernel", made.megakernel},
                                    {"sequences", batch},
                                    {"ms", made.seconds * 1e3},
                                    {"tokens_per_s", rate},
                                    {"weight_bytes", made.weight_bytes},
                                    {"bandwidth_share", share}});
      }
    }
  }
  std::printf("%s: %lld generated tokens per sequence after a prompt of %lld, random weights%s\n",
              context.info().name.c_str(), static_cast<long long>(options.tokens),
              static_cast<long long>(options.prompt),
              model.model().num_moe_experts > 0
                  ? "; GB read: at most, since tokens may select the same experts"
                  : "");
  print_table(table);
  write_report(options.common, report);
}

}  // namespace

void add_decode_command(CLI::App& app, parallel::World& world) {
  const auto options = std::make_shared<DecodeOptions>();
  CLI::App* command =
      app.add_subcommand("decode", "Decoding of te-generate: one token per sequence and pass, small batches");
  options->common.add_to(*command, false);
  command->add_option("--config", options->config, "YAML file of te-train that describes the model")
      ->required()
      ->type_name("FILE");
  command->add_option("--set", options->overrides, "override a key, as in te-train")->type_name("KEY=VALUE");
  command->add_option("--batch", options->batches, "sequences per pass")
      ->delimiter(',')
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--fp8", options->fp8, "off, hybrid or e4m3, as in te-generate --fp8")
      ->delimiter(',')
      ->check(CLI::IsMember({"off", "hybrid", "e4m3"}))
      ->capture_default_str();
  command
      ->add_option(
          "--launches", options->launches,
          "ops: one kernel per operation; megakernel: as te-generate --megakernel on. The table shows "
          "what was used")
      ->delimiter(',')
      ->check(CLI::IsMember({"ops", "megakernel"}))
      ->capture_default_str();
  command->add_option("--prompt", options->prompt, "tokens of the prompt")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--tokens", options->tokens, "generated tokens that are timed")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->callback([options, &world] { run(*options, world); });
}

}  // namespace te::bench
