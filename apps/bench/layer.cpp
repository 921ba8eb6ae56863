#include "bench/layer.h"

#include <fmt/ranges.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "bench/layer_config.h"
#include "bench/profile.h"
#include "bench/session.h"
#include "common/text.h"
#include "config/validate_device.h"
#include "core/clock.h"
#include "core/error.h"
#include "kernels/elementwise/elementwise.h"
#include "model/mlp.h"
#include "model/transformer_layer.h"
#include "parallel/groups.h"
#include "parallel/launch.h"
#include "parallel/watchdog.h"
#include "train/execution.h"
#include "train/flops.h"

namespace te::bench {

using parallel::Axis;

namespace {

struct LayerOptions {
  Options common;
  std::string which;
  std::vector<std::string> configs, overrides;
  std::vector<std::string> recipes{"delayed"};
  bool profile = false;
  bool tune = false;
};

/// One rank's shard of a layer, with all its memory.
class Layer {
 public:
  Layer(const config::Config& config, const Context& context, const parallel::Groups& groups)
      : context_(context),
        tensor_(groups.tensor(), config.parallel.sequence, static_cast<int>(config.parallel.tensor_overlap),
                groups.tensor_peer_transport()),
        recipe_(fp8::make_recipe(config.precision, 1)),
        ranks_(config.model, config.training.micro_batch_size, groups.context(), tensor_.size()),
        layer_config_(model::LayerConfig::of(config, tensor_).of_layer(0)),
        dims_(layer_config_.dims),
        layer_(0, layer_config_, parameters_, *recipe_, rope_.of(layer_config_.model), tensor_, ranks_) {
    recipe_->set_amax_groups(groups.microbatch(), groups.stage());
    parameters_.plan(plan_, {.dtype = dims_.dtype, .tensor_rank = tensor_.rank()});
    recipe_->plan(plan_);
    tensor_.plan(plan_, dims_.dtype, dims_.tokens, dims_.hidden);
    rope_.plan(plan_, config.model);
    ranks_.plan(plan_);
    layer_.plan_weights(plan_, true, false);
    layer_.plan_scratch(plan_, context);
    layer_.plan_input(plan_, activations_);
    layer_.plan_activations(plan_, activations_);
    layer_.plan_gradients(plan_, gradients_, false);
    layer_.plan_gradients(plan_, previous_gradients_, false);
    plan_.add(d_residual_, "d_stream", MemoryKind::scratch, dims_.dtype, {dims_.residual_rows, dims_.hidden});
    if (layer_.quantized()) {
      const int64_t elements = dims_.tokens * dims_.hidden;
      plan_.add(dy_rowwise_, "dy.rowwise", MemoryKind::activations, DType::u8, {elements});
      plan_.add(dy_columnwise_, "dy.columnwise", MemoryKind::activations, DType::u8, {elements});
    }
    plan_.add(out_, "out", MemoryKind::activations, dims_.dtype, {dims_.residual_rows, dims_.hidden});
    plan_.add(dy_, "dy", MemoryKind::activations, dims_.dtype, {dims_.residual_rows, dims_.hidden});
    plan_.add(fc1_out_, "fc1_out", MemoryKind::activations, dims_.dtype, {dims_.tokens, dims_.fc1});
    memory_ = plan_.allocate(context);
    if (parallel::PeerTransport* const copies = groups.tensor_peer_transport(); copies != nullptr)
      registered_ = copies->register_memory(context, memory_.data(), memory_.bytes(), plan_.buffers());
    parameters_.bind(context);
    rope_.fill(context, config.model);
    ranks_.fill(context);
    recipe_->reset(context);
    parameters_.initialize(context, 1);
    keep_dy_in_fp8();
    fill_random(context, activations_.x_in);
    fill_random(context, dy_);
    for (int i = 0; i < 3; ++i) {  // lets the scales of delayed scaling converge
      quantize_weights();
      restore_dy();
      forward();
      backward();
      recipe_->update(context, nullptr);
    }
    quantize_weights();
    has_previous_layer_ = true;
    forward();
    context.copy(fc1_out_, mlp().fc1_out);
  }

  void quantize_weights() { layer_.quantize_weights(context_); }
  void forward() {
    layer_.forward(context_, activations_.x_in, {}, activations_, pass_);
    kernels::add(context_, activations_.x_mid, activations_.delta,
                 out_);  // in a model the next norm's kernel does this
  }
  /// Call it before each backward pass, which overwrites the gradient of the output (and the activation's input with
  /// its gradient).
  void restore_dy() {
    context_.copy(d_residual_, dy_);
    context_.copy(mlp().fc1_out, fc1_out_);
  }
  void backward() {
    // In a model the next layer's norm backward has already quantized linear_fc2's dy, and this layer's norm backward
    // does that for the previous layer.
    const fp8::OperandRequest request =
        has_previous_layer_ ? layer_.grad_request(gradients_, pass_) : fp8::OperandRequest();
    layer_.backward(context_, activations_, gradients_, {&layer_, &previous_gradients_},
                    request.in_addition_to(d_residual_), pass_);
  }

 private:
  model::Mlp::Activations& mlp() { return model::Mlp::own(*activations_.feed_forward); }
  /// Gives the FP8 copies of dy their own memory, where they stay as the first passes quantize them.
  void keep_dy_in_fp8() {
    if (!layer_.quantized()) return;
    model::Mlp::Gradients& gradients = model::Mlp::own(*gradients_.feed_forward);
    gradients.fc2.rowwise.values.data = dy_rowwise_.data;
    gradients.fc2.columnwise.values.data = dy_columnwise_.data;
  }

  const Context& context_;
  parallel::TensorParallel tensor_;
  parameters::ParameterStore parameters_;
  std::unique_ptr<fp8::Recipe> recipe_;
  model::RotaryEmbedding rope_;
  model::ContextParallel ranks_;
  model::LayerConfig layer_config_;
  model::Dimensions dims_;
  model::TransformerLayer layer_;
  model::LayerActivations activations_;
  model::LayerGradients gradients_, previous_gradients_;
  model::Pass pass_;
  MemoryPlan plan_;
  DeviceBuffer memory_;
  std::unique_ptr<parallel::PeerTransport::RegisteredMemory>
      registered_;  ///< registration of memory_, if ranks write into each other's memory
  PlannedTensor d_residual_, out_, dy_, fc1_out_, dy_rowwise_, dy_columnwise_;
  bool has_previous_layer_ = false;
};

constexpr std::chrono::seconds kCoolDown{3};
constexpr double kWarmupSeconds = 2;

/// Lets a GPU cool down, so that it starts at its highest clock.
void cool_down(const Context& context) {
  context.synchronize();
  if (context.is_cuda()) std::this_thread::sleep_for(kCoolDown);
}
/// Keeps the GPU busy until power and clock are those of training. All ranks make the same number of calls, because
/// these may communicate.
void warm_up(const Context& context, parallel::World& world, const std::function<void()>& call) {
  const double start = now_seconds();
  while (context.is_cuda() && world.max_f64(now_seconds() - start) < kWarmupSeconds) {
    for (int i = 0; i < 10; ++i) call();
    context.synchronize();
  }
}

void set_recipe(config::PrecisionConfig& precision, const std::string& recipe) {
  if (!from_string(recipe, precision.fp8_recipe))
    user_error("--recipe {}: must be {}", recipe, fmt::join(config::names_of(config::Fp8Recipe{}), ", "));
}

/// What is timed, and on which ranks.
struct Bench {
  const LayerOptions& options;
  const Context& context;
  parallel::World& world;
  const parallel::Groups& groups;
};

/// Milliseconds of the slowest rank.
struct LayerTimes {
  double both = 0, power_limited = 0, forward = 0, backward = 0, quantize = 0;
  std::optional<Profile> profile;
};

LayerTimes measure(const Bench& bench, const config::Config& config) {
  const Context& context = bench.context;
  const int repeats = bench.options.common.repeats;
  // Tells the watchdog in which phase ranks wait for each other.
  const auto watched = [&](const char* phase, const auto& work) {
    const parallel::Watchdog::Guard guard(context, fmt::format("{} of {}", phase, config.name));
    return work();
  };
  std::optional<Layer> made;
  watched("the first passes", [&] { made.emplace(config, context, bench.groups), context.synchronize(); });
  Layer& layer = *made;
  const auto restore_dy = [&] { layer.restore_dy(); };
  const auto passes = [&] { layer.forward(), layer.backward(); };
  const auto time = [&](
                        const char* phase, const std::function<void()>& call,
                        const std::function<void()>& prepare = [] {}) {
    return watched(phase, [&] { return bench.world.max_f64(median_ms(context, repeats, call, prepare)); });
  };
  LayerTimes times;
  cool_down(context);
  times.both = time("both passes", passes, restore_dy);
  watched("warmup", [&] { warm_up(context, bench.world, [&] { restore_dy(), passes(); }); });
  times.power_limited = time("power-limited passes", passes, restore_dy);
  times.forward = time("forward passes", [&] { layer.forward(); });
  times.backward = time(
      "backward passes", [&] { layer.backward(); }, restore_dy);
  if (config.precision.fp8 != config::Fp8Mode::off)
    times.quantize = time("quantizing the weights", [&] { layer.quantize_weights(); });
  if (bench.options.profile)
    times.profile =
        watched("the profile", [&] { return collect_profile(context, repeats, passes, restore_dy); });
  return times;
}

/// "TP4", "TP2, CP2"; empty on one rank.
std::string layout_text(const parallel::ProcessGrid& grid) {
  std::string text = grid[Axis::tensor] > 1 ? fmt::format("TP{}", grid[Axis::tensor]) : "";
  if (grid[Axis::context] > 1) text += fmt::format("{}CP{}", text.empty() ? "" : ", ", grid[Axis::context]);
  return text;
}

/// Measures one layer in the config's dtype (empty `recipe`) or in FP8. Adds a row to the table and an entry to the
/// report, and prints the profile if requested. `plain_ms`: milliseconds of both passes in the config's dtype. Returns
/// the milliseconds of both passes.
double run_layer(const Bench& bench, config::Config config, const std::string& recipe, double plain_ms,
                 std::vector<std::vector<std::string>>& table, nlohmann::json& report) {
  const bool fp8 = !recipe.empty();
  const std::string precision(fp8 ? "fp8" : to_string(config.precision.dtype));
  // Keeps the config's FP8 mode, if it has one.
  if (!fp8) {
    config.precision.fp8 = config::Fp8Mode::off;
  } else if (config.precision.fp8 == config::Fp8Mode::off) {
    config.precision.fp8 = config::Fp8Mode::hybrid;
  }
  if (fp8) set_recipe(config.precision, recipe);
  const bool overrides = fp8 && has_overrides(config.precision);
  config = config::for_device(config, device_caps(bench.context));
  LayerTimes times = measure(bench, config);
  if (times.profile) add_lower_bounds(bench.context, *times.profile, bench.options.common.repeats);
  const std::string layout = layout_text(bench.groups.grid());
  const int64_t tokens = config.training.micro_batch_size * config.model.seq_length;
  config.model.vocab_size = config.model.make_vocab_size_divisible_by = 1;
  const double tflops = train::flops_per_token(config.model) * static_cast<double>(tokens) /
                        bench.world.size() / times.both / 1e9;
  table.push_back({layout.empty() ? config.name : fmt::format("{}, {}", config.name, layout),
                   apps::upper_case(precision) + (fp8 ? " " + recipe : "") + (overrides ? ", overrides" : ""),
                   std::to_string(tokens), fmt::format("{:.3f}", times.forward),
                   fmt::format("{:.3f}", times.backward), fmt::format("{:.3f}", times.both),
                   fmt::format("{:.3f}", times.power_limited), fmt::format("{:.0f}", tflops),
                   fp8 ? fmt::format("{:.3f}", times.quantize) : "",
                   fp8 ? fmt::format("{:.2f}", plain_ms / times.both) : ""});
  nlohmann::json entry = {{"which", config.name},
                          {"precision", precision},
                          {"recipe", fp8 ? recipe : "off"},
                          {"overrides", overrides},
                          {"ranks", bench.world.size()},
                          {"layout", layout},
                          {"tokens", tokens},
                          {"forward_ms", times.forward},
                          {"backward_ms", times.backward},
                          {"ms", times.both},
                          {"sustained_ms", times.power_limited},
                          {"weight_quantization_ms", times.quantize},
                          {"tflops", tflops}};
  if (times.profile && bench.world.leader()) {
    std::printf("%s, %s, forward and backward of %lld tokens\n", table.back().front().c_str(),
                apps::upper_case(precision).c_str(), static_cast<long long>(tokens));
    print_profile(*times.profile, times.power_limited, "layer");
    entry["profile"] = to_json(*times.profile, times.power_limited);
  }
  report["layer"].push_back(std::move(entry));
  return times.both;
}

/// The configs of all requested layers. UserError for options that exclude each other or have no effect.
std::vector<config::Config> layers_of(const LayerOptions& options) {
  if (!options.configs.empty() && !options.which.empty())
    user_error("--which and --config exclude each other: use one of them");
  if (!options.overrides.empty() && options.configs.empty())
    user_error("--set overrides a key of a config and needs --config FILE");
  config::PrecisionConfig precision;
  for (const std::string& recipe : options.recipes) set_recipe(precision, recipe);
  std::vector<config::Config> layers;
  for (const std::string& path : options.configs) layers.push_back(first_layer(path, options.overrides));
  if (!layers.empty()) return layers;
  if (!options.which.empty()) return {layer_config(options.which)};
  return {layer_config("gpt"), layer_config("llama7b")};
}

/// The grid in which all ranks of the job are the config's tensor- and context-parallel ranks.
parallel::ProcessGrid grid_of(const config::Config& config, int ranks) {
  const int64_t tensor = config.parallel.tensor, context = config.parallel.context;
  if (tensor * context != ranks)
    user_error(
        "layer: {} has parallel.tensor {} and parallel.context {}, but the job has {} rank{}: start it with "
        "mpirun -n {}, or --set other values",
        config.name, tensor, context, ranks, ranks == 1 ? "" : "s", tensor * context);
  return parallel::ProcessGrid::of(ranks, static_cast<int>(tensor), static_cast<int>(context), 1);
}

/// The execution options of a run of the config. One layer leaves enough memory to search for algorithms at a GEMM's
/// first use.
ExecutionOptions execution_options(const LayerOptions& options, const config::Config& layer) {
  ExecutionOptions execution = train::execution_options(layer);
  if (options.tune) execution.gemm_autotune = GemmAutotune::full;
  return execution;
}

void run(const LayerOptions& options, parallel::World& world) {
  std::vector<config::Config> layers;
  world.run_collectively([&] {
    layers = layers_of(options);
    for (const config::Config& layer : layers) grid_of(layer, world.size());
    if (world.size() > 1 && options.common.device.starts_with("cuda:"))
      user_error("--device {}: {} ranks have a GPU each; use cuda or leave it out", options.common.device,
                 world.size());
    if (world.leader()) check_report(options.common);
  });
  const bool several = world.size() > 1 && options.common.device != "cpu" && cuda_device_count() > 0;
  const Context device = several ? parallel::open_cuda_device(world, {}) : open_device(options.common.device);
  nlohmann::json report = report_head(device, options.common);
  std::vector<std::vector<std::string>> table{{"layer", "precision", "tokens", "forward ms", "backward ms",
                                               "both ms", "power-limited ms", "TFLOP/s",
                                               "weight quantization ms", "speedup"}};
  bool without_fp8 = false;
  for (const config::Config& layer : layers) {
    parallel::Watchdog::set_timeout(static_cast<double>(layer.parallel.timeout_seconds));
    const Context context = reopen(device, execution_options(options, layer));
    const parallel::Groups groups = parallel::Groups::connect(world, context, grid_of(layer, world.size()),
                                                              train::connect_options(layer));
    const Bench bench{options, context, world, groups};
    const double plain_ms = run_layer(bench, layer, "", 0.0, table, report);
    if (layer.precision.dtype == config::ComputeDType::fp16 ||
        (device.is_cuda() && !device_caps(device).fp8)) {
      without_fp8 = true;
      continue;
    }
    for (const std::string& recipe : options.recipes)
      run_layer(bench, layer, recipe, plain_ms, table, report);
  }
  if (!world.leader()) return;
  std::printf(
      "%s, median of %d; weights are quantized once per optimizer step, gradients accumulate in FP32;\n"
      "\"both\" starts on a cold GPU, the other columns after two seconds of load%s%s\n",
      device.info().name.c_str(), options.common.repeats,
      world.size() > 1 ? "; times of the slowest rank, TFLOP/s per rank" : "",
      without_fp8 ? "; FP16 layers are not measured in FP8, nor is any layer on a GPU without it" : "");
  print_table(table);
  write_report(options.common, report);
}

}  // namespace

void add_layer_command(CLI::App& app, parallel::World& world) {
  const auto options = std::make_shared<LayerOptions>();
  CLI::App* command = app.add_subcommand(
      "layer", "Forward and backward pass of one transformer layer in BF16 (or the config's dtype) and FP8");
  options->common.add_to(*command);
  command->add_option("--which", options->which,
                      "gpt (hidden size 4096, 4 x 2048 tokens) or llama7b (2 x 4096 tokens); default: both");
  command
      ->add_option("--config", options->configs,
                   "time the first layer of this te-train config instead, with one microbatch on all of its "
                   "tensor- and context-parallel ranks: mpirun -n 4 te-bench layer --config "
                   "configs/llama3.1_70b_fp8.yaml; may be repeated")
      ->type_name("FILE");
  command->add_option("--set", options->overrides, "override a key of these configs, as in te-train")
      ->type_name("KEY=VALUE");
  command->add_option("--recipe", options->recipes, "FP8 recipes, as in precision.fp8_recipe")
      ->delimiter(',')
      ->capture_default_str();
  command->add_flag("--profile", options->profile,
                    "also time every operation, and show the speed-of-light time of each kind");
  command->add_flag("--tune", options->tune,
                    "first search for the algorithms of all GEMMs, as training.gemm_autotune: full does, and "
                    "save them for later runs");
  command->callback([options, &world] { run(*options, world); });
}

}  // namespace te::bench
