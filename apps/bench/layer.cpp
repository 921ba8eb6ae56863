#include "bench/layer.h"

#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "bench/profile.h"
#include "bench/session.h"
#include "core/error.h"
#include "kernels/elementwise/elementwise.h"
#include "model/transformer_layer.h"
#include "train/flops.h"

namespace te::bench {
namespace {

struct LayerOptions {
  Options common;
  std::string which;
  std::vector<std::string> recipes{"delayed"};
  bool cublaslt_only = false;
  bool profile = false;
  bool tune = false;
};

/// The layer shapes that others publish: a GPT layer of Transformer Engine's tutorial, and Llama-2 7B's.
config::Config layer_config(const std::string& which) {
  config::Config config;
  config.name = which;
  config.model.num_layers = 1;
  config.model.vocab_size = 16;
  config.model.make_vocab_size_divisible_by = 16;
  config.model.hidden_size = 4096;
  config.model.num_attention_heads = 32;
  if (which == "gpt") {
    config.model.family = config::Family::gpt;
    config.model.ffn_hidden_size = 16384;
    config.model.seq_length = 2048;
    config.training.micro_batch_size = 4;
  } else if (which == "llama7b") {
    config.model.family = config::Family::llama;
    config.model.ffn_hidden_size = 11008;
    config.model.seq_length = 4096;
    config.training.micro_batch_size = 2;
  } else {
    user_error("--which {}: must be gpt or llama7b", which);
  }
  config.training.global_batch_size = config.training.micro_batch_size;
  config.training.train_steps = 1;
  config.data.synthetic = true;
  config::resolve_defaults(config);
  return config;
}

/// One layer with all its memory.
class Layer {
 public:
  Layer(const config::Config& config, const Context& context)
      : context_(context),
        recipe_(fp8::make_recipe(config.precision, 1)),
        ranks_(config.model, config.training.micro_batch_size),
        layer_config_(model::LayerConfig::of(config, tensor_)),
        dims_(layer_config_.dims),
        layer_(0, layer_config_, parameters_, *recipe_, rope_.of(layer_config_.model), tensor_, ranks_) {
    parameters_.plan(plan_, {.dtype = dims_.dtype});
    recipe_->plan(plan_);
    rope_.plan(plan_, config.model);
    layer_.plan_weights(plan_, true, false);
    layer_.plan_scratch(plan_, context);
    layer_.plan_input(plan_, activations_);
    layer_.plan_activations(plan_, activations_);
    layer_.plan_gradients(plan_, gradients_, false);
    layer_.plan_gradients(plan_, below_, false);
    plan_.add(d_stream_, "d_stream", MemoryKind::scratch, dims_.dtype, {dims_.stream, dims_.hidden});
    if (layer_.quantized()) {
      const int64_t elements = dims_.tokens * dims_.hidden;
      plan_.add(dy_rowwise_, "dy.rowwise", MemoryKind::activations, DType::u8, {elements});
      plan_.add(dy_columnwise_, "dy.columnwise", MemoryKind::activations, DType::u8, {elements});
    }
    plan_.add(out_, "out", MemoryKind::activations, dims_.dtype, {dims_.tokens, dims_.hidden});
    plan_.add(dy_, "dy", MemoryKind::activations, dims_.dtype, {dims_.tokens, dims_.hidden});
    plan_.add(fc1_out_, "fc1_out", MemoryKind::activations, dims_.dtype, {dims_.tokens, dims_.fc1});
    memory_ = plan_.allocate(context);
    parameters_.bind(context);
    rope_.fill(context, config.model);
    recipe_->reset(context);
    parameters_.initialize(context, 1);
    keep_dy_in_fp8();
    fill_random(context, activations_.x_in);
    fill_random(context, dy_);
    for (int i = 0; i < 3; ++i) {  // settle the scales of delayed scaling
      cast_weights();
      restore_dy();
      forward();
      backward();
      recipe_->update(context, nullptr);
    }
    cast_weights();
    below_another_ = true;
    forward();
    context.copy(fc1_out_, activations_.mlp.fc1_out);
  }

  void cast_weights() { layer_.quantize_weights(context_); }
  void forward() {
    layer_.forward(context_, activations_.x_in, {}, activations_, pass_);
    kernels::add(context_, activations_.x_mid, activations_.delta,
                 out_);  // a model has the next norm's kernel do this
  }
  /// Before each backward pass, which overwrites the gradient of the output (and the activation's input by its
  /// gradient).
  void restore_dy() {
    context_.copy(d_stream_, dy_);
    context_.copy(activations_.mlp.fc1_out, fc1_out_);
  }
  void backward() {
    // In a model the last norm of the layer above has seen to linear_fc2's dy, as this one's does for the layer below.
    if (below_another_) layer_.grad_target(gradients_, pass_).besides();
    layer_.backward(context_, activations_, gradients_, {&layer_, &below_}, d_stream_, pass_);
  }

 private:
  /// In memory of its own, where it stays as the first passes cast it.
  void keep_dy_in_fp8() {
    if (!layer_.quantized()) return;
    gradients_.mlp.fc2.rowwise.values.data = dy_rowwise_.data;
    gradients_.mlp.fc2.columnwise.values.data = dy_columnwise_.data;
  }

  const Context& context_;
  parallel::SingleCommunicator one_{"tensor", 0};
  parallel::TensorParallel tensor_{one_, false, 1};
  parameters::ParameterStore parameters_;
  std::unique_ptr<fp8::Recipe> recipe_;
  model::RotaryEmbedding rope_;
  model::ContextParallel ranks_;
  model::LayerConfig layer_config_;
  model::Dimensions dims_;
  model::TransformerLayer layer_;
  model::LayerActivations activations_;
  model::LayerGradients gradients_, below_;
  model::Pass pass_;
  MemoryPlan plan_;
  DeviceBuffer memory_;
  Tensor d_stream_, out_, dy_, fc1_out_, dy_rowwise_, dy_columnwise_;
  bool below_another_ = false;
};

constexpr std::chrono::seconds kRest{3}, kSettle{2};

/// Lets a GPU cool down and its clock rise, as it is when a program begins.
void rest(const Context& context) {
  context.synchronize();
  if (context.is_cuda()) std::this_thread::sleep_for(kRest);
}
/// Keeps it busy until power and clock are those of training.
void settle(const Context& context, const std::function<void()>& call) {
  const auto end = std::chrono::steady_clock::now() + kSettle;
  while (context.is_cuda() && std::chrono::steady_clock::now() < end) {
    for (int i = 0; i < 10; ++i) call();
    context.synchronize();
  }
}

/// One layer in BF16 (recipe empty) or FP8: a row of the table, an entry of the report, and the profile if it was asked
/// for. Gives the milliseconds of both passes.
double run_layer(const LayerOptions& options, const std::string& which, const std::string& recipe,
                 double bf16_ms, const Context& context, std::vector<std::vector<std::string>>& table,
                 nlohmann::json& report) {
  const bool fp8 = !recipe.empty();
  config::Config config = layer_config(which);
  if (fp8) config.precision.fp8 = config::Fp8Mode::hybrid;
  if (fp8 && !from_string(recipe, config.precision.fp8_recipe))
    user_error("--recipe {}: must be delayed, tensorwise, rowwise or blockwise", recipe);
  const int repeats = options.common.repeats;
  auto layer = std::make_unique<Layer>(config, context);
  const auto restore_dy = [&] { layer->restore_dy(); };
  const auto passes = [&] { layer->forward(), layer->backward(); };
  rest(context);
  const double both = median_ms(context, repeats, passes, restore_dy);
  settle(context, [&] { restore_dy(), passes(); });
  const double sustained = median_ms(context, repeats, passes, restore_dy);
  const double forward = median_ms(context, repeats, [&] { layer->forward(); });
  const double backward = median_ms(
      context, repeats, [&] { layer->backward(); }, restore_dy);
  const double cast = fp8 ? median_ms(context, repeats, [&] { layer->cast_weights(); }) : 0.0;
  std::optional<Profile> profile;
  if (options.profile) profile = take_profile(context, repeats, passes, restore_dy);
  layer.reset();
  const int64_t tokens = config.training.micro_batch_size * config.model.seq_length;
  config.model.vocab_size = config.model.make_vocab_size_divisible_by = 1;
  const double tflops = train::flops_per_token(config.model) * static_cast<double>(tokens) / both / 1e9;
  table.push_back({which, fp8 ? "FP8 " + recipe : "BF16", std::to_string(tokens),
                   fmt::format("{:.3f}", forward), fmt::format("{:.3f}", backward),
                   fmt::format("{:.3f}", both), fmt::format("{:.3f}", sustained),
                   fmt::format("{:.0f}", tflops), fp8 ? fmt::format("{:.3f}", cast) : "",
                   fp8 ? fmt::format("{:.2f}", bf16_ms / both) : ""});
  nlohmann::json entry = {{"which", which},
                          {"precision", fp8 ? "fp8" : "bf16"},
                          {"recipe", fp8 ? recipe : "off"},
                          {"tokens", tokens},
                          {"forward_ms", forward},
                          {"backward_ms", backward},
                          {"ms", both},
                          {"sustained_ms", sustained},
                          {"weight_cast_ms", cast},
                          {"tflops", tflops}};
  if (profile) {
    add_floors(context, *profile, repeats);
    std::printf("%s, %s, forward and backward of %lld tokens\n", which.c_str(), fp8 ? "FP8" : "BF16",
                static_cast<long long>(tokens));
    print_profile(*profile, sustained, "layer");
    entry["profile"] = to_json(*profile, sustained);
  }
  report["layer"].push_back(std::move(entry));
  return both;
}

void run(const LayerOptions& options) {
  // A layer leaves memory enough for the search at a GEMM's first use.
  const Context context = open_device(options.common.device,
                                      {.gemm_autotune = options.tune ? GemmAutotune::full : GemmAutotune::on,
                                       .block_scaled_gemm = options.cublaslt_only ? 0 : -1});
  nlohmann::json report = report_head(context, options.common);
  std::vector<std::vector<std::string>> table{{"layer", "precision", "tokens", "forward ms", "backward ms",
                                               "both ms", "sustained ms", "TFLOP/s", "weight cast ms",
                                               "speed-up"}};
  for (const std::string& which : options.which.empty() ? std::vector<std::string>{"gpt", "llama7b"}
                                                        : std::vector<std::string>{options.which}) {
    const double bf16_ms = run_layer(options, which, "", 0.0, context, table, report);
    for (const std::string& recipe : options.recipes)
      run_layer(options, which, recipe, bf16_ms, context, table, report);
  }
  std::printf(
      "%s, median of %d; weights are cast once per optimizer step, gradients accumulate in FP32;\n"
      "\"both\" begins on a card at rest, the other columns after two seconds of work\n",
      context.info().name.c_str(), options.common.repeats);
  print_table(table);
  write_report(options.common, report);
}

}  // namespace

void add_layer_command(CLI::App& app) {
  const auto options = std::make_shared<LayerOptions>();
  CLI::App* command =
      app.add_subcommand("layer", "Forward and backward of one transformer layer, BF16 and FP8");
  options->common.add_to(*command);
  command->add_option("--which", options->which,
                      "gpt (4096/16384, 4 x 2048) or llama7b (2 x 4096); both when absent");
  command->add_option("--recipe", options->recipes, "FP8 recipes: delayed, tensorwise, rowwise, blockwise")
      ->delimiter(',')
      ->capture_default_str();
  command->add_flag("--library-gemms", options->cublaslt_only,
                    "blockwise: cuBLASLt's GEMMs alone, not the fastest of those and te-train's own");
  command->add_flag("--profile", options->profile,
                    "also time every operation, and show what each kind needs at least");
  command->add_flag("--tune", options->tune,
                    "first search for the algorithms of all GEMMs, as training.gemm_autotune: full does, and "
                    "keep them for later runs");
  command->callback([options] { run(*options); });
}

}  // namespace te::bench
