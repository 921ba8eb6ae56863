// Activation recomputation and the FP8 state: recompute none, selective and full give the same gradients bit for bit,
// in every precision and with dropout. So do FP8 weights that are kept and those that are quantized for each GEMM.
// Evaluation and recomputation do not change the FP8 state.
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "config/recipe_traits.h"
#include "model/tiny_model.h"
#include "testing/testing.h"

namespace te {
namespace {

using config::Config;
using config::Family;
using config::Fp8Mode;
using config::Fp8Recipe;
using config::Recompute;
using testing::set_gemma3;
using testing::tiny_config;
using testing::TinyModel;

std::vector<Config> all_precisions() {
  std::vector<Config> configs;
  for (Family family : {Family::gpt, Family::llama}) {
    for (auto [mode, recipe] : {std::pair{Fp8Mode::off, Fp8Recipe::delayed},
                                {Fp8Mode::hybrid, Fp8Recipe::delayed},
                                {Fp8Mode::e4m3, Fp8Recipe::delayed},
                                {Fp8Mode::hybrid, Fp8Recipe::tensorwise},
                                {Fp8Mode::hybrid, Fp8Recipe::mxfp8},
                                {Fp8Mode::hybrid, Fp8Recipe::nvfp4},
                                {Fp8Mode::hybrid, Fp8Recipe::rowwise},
                                {Fp8Mode::e4m3, Fp8Recipe::blockwise}}) {
      Config config = tiny_config(family);
      config.precision.dtype = config::ComputeDType::bf16;
      config.precision.fp8 = mode;
      config.precision.fp8_recipe = recipe;
      if (recipe == Fp8Recipe::mxfp8) config.model.ffn_hidden_size = 64;
      config.precision.amax_history_len = 4;
      config.precision.first_layers_bf16 = mode == Fp8Mode::e4m3 ? 1 : 0;
      if (family == Family::gpt) config.model.hidden_dropout = config.model.attention_dropout = 0.1;
      configs.push_back(config);
    }
    configs.push_back(configs[configs.size() - 7]);  // hybrid, delayed
    configs.back().precision.fp8_output_layer = true;
    configs.push_back(configs[configs.size() - 8]);  // hybrid, delayed
    configs.back().precision.overrides =
        "linear_fc2 input: bf16; linear_fc1 wgrad: bf16; layers 1 linear_qkv: blockwise";
  }
  return configs;
}

bool supports_experts(const Config& config) {
  const Fp8Recipe recipe = config.precision.fp8_recipe;
  return recipe != Fp8Recipe::rowwise && !config::traits_of(recipe).emulated;
}

/// Variants of a layer, in BF16 and FP8.
std::vector<Config> all_variants() {
  std::vector<Config> configs;
  for (const Config& plain : all_precisions()) {
    if (plain.precision.fp8_output_layer || plain.precision.fp8 == Fp8Mode::e4m3) continue;
    configs.push_back(plain);
    config::ModelConfig& model = configs.back().model;
    if (model.family == Family::gpt) {
      model.parallel_residual = true;
      model.position_embedding = config::PositionEmbedding::rope;
      continue;
    }
    model.qk_norm = config::QkNorm::head;
    model.add_qkv_bias = model.add_proj_bias = model.add_mlp_bias = true;
    configs.push_back(plain);
    configs.back().model.qk_norm = config::QkNorm::projection;
    configs.back().model.norm_placement = config::NormPlacement::post;
    configs.back().model.sliding_window = 7;
    configs.push_back(plain);
    set_gemma3(configs.back().model);
    configs.push_back(plain);
    testing::set_nanochat(configs.back().model);
    if (!supports_experts(plain)) continue;
    configs.push_back(plain);
    testing::set_fp8_experts(configs.back().model);
  }
  for (const Config& plain : all_precisions()) {
    if (plain.model.family == Family::gpt || plain.precision.fp8 != Fp8Mode::e4m3 || !supports_experts(plain))
      continue;
    configs.push_back(plain);
    testing::set_fp8_experts(configs.back().model);
    // Quantized in one layout, in high precision in the other.
    for (const char* overrides :
         {"linear_fc1 fprop: bf16", "linear_fc1 wgrad: bf16; linear_fc2 fprop dgrad: bf16",
          "linear_fc2 wgrad: bf16; linear_fc1 dgrad: bf16"}) {
      configs.push_back(configs.back());
      configs.back().precision.overrides = overrides;
    }
  }
  return configs;
}

std::string label(const Config& config) {
  return std::string(to_string(config.model.family)) + " qk_norm " +
         std::string(to_string(config.model.qk_norm)) + " " + config.model.window_pattern + " " +
         std::string(to_string(config.precision.fp8)) + " " +
         std::string(to_string(config.precision.fp8_recipe)) +
         (config.precision.fp8_output_layer ? ", output layer too" : "") + " " + config.precision.overrides;
}

// Three training steps; parameters, gradients and FP8 scales at the end.
std::vector<std::vector<float>> trained(Config config, Recompute recompute) {
  config.training.recompute = recompute;
  TinyModel tiny(config);
  for (int step = 0; step < 3; ++step) {
    tiny.set_batch(10 + step);
    tiny.train_step(1e-2f);
  }
  tiny.forward_backward();
  std::vector<std::vector<float>> result = {tiny.read(tiny.model().parameters().mains),
                                            tiny.read(tiny.model().parameters().grads)};
  if (config.precision.fp8 != Fp8Mode::off) result.push_back(tiny.read(tiny.model().recipe().table().scale));
  return result;
}

TEST(Recompute, GivesBitwiseEqualGradientsInEveryPrecision) {
  for (const Config& config : all_precisions()) {
    const auto reference = trained(config, Recompute::none);
    for (float value : reference[1]) ASSERT_TRUE(std::isfinite(value)) << label(config);
    EXPECT_EQ(trained(config, Recompute::selective), reference) << label(config) << " selective";
    EXPECT_EQ(trained(config, Recompute::full), reference) << label(config) << " full";
  }
}

TEST(Recompute, GivesBitwiseEqualGradientsInEveryVariantOfALayer) {
  for (const Config& config : all_variants()) {
    const auto reference = trained(config, Recompute::none);
    for (float value : reference[1]) ASSERT_TRUE(std::isfinite(value)) << label(config);
    EXPECT_EQ(trained(config, Recompute::selective), reference) << label(config) << " selective";
    EXPECT_EQ(trained(config, Recompute::full), reference) << label(config) << " full";
  }
}

// TinyModel overwrites scratch memory with NaN outside its lifetime, so weights that are quantized too early, too late
// or in memory of other tensors change the results. Runs with every kind of recomputation.
TEST(KeptWeights, GiveTheSameBits) {
  using config::Fp8KeptWeights;
  std::vector<Config> configs = all_precisions();
  for (const Config& variant : all_variants())
    if (variant.model.num_moe_experts > 0) configs.push_back(variant);
  for (Config config : configs) {
    if (config.precision.fp8 == Fp8Mode::off) continue;
    config.precision.fp8_keep_weights = Fp8KeptWeights::both;
    const auto reference = trained(config, Recompute::none);
    for (const Fp8KeptWeights kept : {Fp8KeptWeights::none, Fp8KeptWeights::rowwise}) {
      config.precision.fp8_keep_weights = kept;
      for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full})
        EXPECT_EQ(trained(config, recompute), reference)
            << label(config) << " kept " << to_string(kept) << ", recompute " << to_string(recompute);
    }
  }
}

TEST(KeptWeights, GiveTheSameBitsWithOverrides) {
  using config::Fp8KeptWeights;
  Config config = tiny_config(Family::llama);
  config.precision.dtype = config::ComputeDType::bf16;
  config.precision.fp8 = Fp8Mode::hybrid;
  for (const char* recipe : {"tensorwise", "rowwise", "blockwise", "mxfp8", "nvfp4", "delayed"}) {
    ASSERT_TRUE(config::from_string(recipe, config.precision.fp8_recipe));
    if (config.precision.fp8_recipe == Fp8Recipe::mxfp8) config.model.ffn_hidden_size = 64;
    for (const char* rules :
         {"fprop: bf16", "dgrad: bf16", "linear_fc1 weight: bf16; linear_proj fprop: bf16"}) {
      config.precision.overrides = rules;
      config.precision.fp8_keep_weights = Fp8KeptWeights::both;
      const auto reference = trained(config, Recompute::none);
      for (const Fp8KeptWeights kept : {Fp8KeptWeights::none, Fp8KeptWeights::rowwise}) {
        config.precision.fp8_keep_weights = kept;
        EXPECT_EQ(trained(config, Recompute::none), reference)
            << label(config) << " kept " << to_string(kept);
        EXPECT_EQ(trained(config, Recompute::full), reference)
            << label(config) << " kept " << to_string(kept);
      }
    }
  }
}

TEST(KeptWeights, HaveTheExpectedMemory) {
  using config::Fp8KeptWeights;
  Config config = tiny_config(Family::llama);
  config.model.num_layers = 8;
  config.precision.dtype = config::ComputeDType::bf16;
  config.precision.fp8 = Fp8Mode::hybrid;
  const auto bytes = [&](Fp8KeptWeights kept, bool remainders) {
    config.precision.fp8_keep_weights = kept;
    config.optimizer.store_param_remainders = remainders;
    return TinyModel(config).plan().bytes(MemoryKind::fp8_weights);
  };
  const int64_t one_layout = bytes(Fp8KeptWeights::rowwise, false);
  EXPECT_GE(one_layout,
            8 * (32 * (32 + 2 * 16) + 32 * 32 + 3 * 32 * 48));  // a byte per weight of the four linear layers
  EXPECT_EQ(bytes(Fp8KeptWeights::both, false), 2 * one_layout);
  EXPECT_EQ(bytes(Fp8KeptWeights::none, false), 0);
  EXPECT_EQ(bytes(Fp8KeptWeights::automatic, false), one_layout);
  EXPECT_EQ(bytes(Fp8KeptWeights::automatic, true), 0);
}

// FP8 weights are quantized from the FP32 master weights: there are no BF16 weights unless a GEMM reads them.
TEST(KeptWeights, NeedNoBf16Weights) {
  using config::Fp8KeptWeights;
  Config config = tiny_config(Family::llama);
  config.model.num_layers = 8;
  config.model.vocab_size = 257;
  config.precision.dtype = config::ComputeDType::bf16;
  config.precision.fp8 = Fp8Mode::hybrid;
  const auto values = [](const Config& of) { return TinyModel(of).plan().bytes(MemoryKind::parameters); };
  const int64_t fp8_weights = 2 * 8 * (32 * (32 + 2 * 16) + 32 * 32 + 3 * 32 * 48);
  Config kept = config;
  kept.precision.fp8_keep_weights = Fp8KeptWeights::none;
  EXPECT_LE(values(config) + fp8_weights, values(kept) + 256);
  for (const auto& change : std::vector<std::function<void(Config&)>>{
           [](Config& c) { c.precision.overrides = "dgrad: bf16"; },
           [](Config& c) { c.precision.fp8_recipe = Fp8Recipe::blockwise; },
           [](Config& c) { c.optimizer.store_param_remainders = true; },
           [](Config& c) {
             c.logging.generate_every = 1;
             c.logging.generate_prompts = {"a"};
             c.data.tokenizer = "bytes";
           }}) {
    Config other = config;
    change(other);
    EXPECT_EQ(values(other), values(kept));
  }
}

TEST(Recompute, SavesMemory) {
  Config config = tiny_config(Family::llama);
  config.model.num_layers = 8;
  const auto activations = [&](Recompute recompute) {
    config.training.recompute = recompute;
    return TinyModel(config).plan().bytes(MemoryKind::activations);
  };
  const int64_t none = activations(Recompute::none), selective = activations(Recompute::selective);
  EXPECT_LT(selective, none * 4 / 5);
  EXPECT_LT(activations(Recompute::full), none / 3);
}

TEST(Fp8State, EvaluationDoesNotChangeIt) {
  for (const Config& config : all_precisions()) {
    if (config.precision.fp8 == Fp8Mode::off || config.precision.fp8_recipe != Fp8Recipe::delayed) continue;
    TinyModel tiny(config), evaluated(config);
    for (int step = 0; step < 3; ++step) {
      tiny.set_batch(step), evaluated.set_batch(step);
      evaluated.evaluate();
      tiny.train_step(1e-2f), evaluated.train_step(1e-2f);
      evaluated.set_batch(77);
      evaluated.evaluate();
    }
    const fp8::ScaleTable &a = tiny.model().recipe().table(), &b = evaluated.model().recipe().table();
    EXPECT_EQ(tiny.read(a.scale), evaluated.read(b.scale)) << label(config);
    EXPECT_EQ(tiny.read(a.history), evaluated.read(b.history)) << label(config);
    EXPECT_EQ(tiny.read(a.amax), evaluated.read(b.amax)) << label(config);
    EXPECT_EQ(tiny.read(tiny.model().parameters().mains),
              evaluated.read(evaluated.model().parameters().mains));
  }
}

TEST(Fp8State, ASkippedStepChangesNothing) {
  Config config = tiny_config(Family::llama);
  config.precision.dtype = config::ComputeDType::bf16;
  config.precision.fp8 = Fp8Mode::hybrid;
  config.precision.amax_history_len = 4;
  TinyModel tiny(config), disturbed(config);
  tiny.train_step(1e-2f), disturbed.train_step(1e-2f);
  const auto scale = disturbed.read(disturbed.model().recipe().table().scale);
  // A step whose gradient is not finite.
  disturbed.forward_backward();
  std::vector<float> gradients = disturbed.read(disturbed.model().parameters().grads);
  gradients[5] = std::numeric_limits<float>::infinity();
  disturbed.write(disturbed.model().parameters().grads, gradients);
  disturbed.optimizer().step(disturbed.context(), 1e-2f);
  disturbed.model().recipe().update(disturbed.context(), disturbed.optimizer().skip_flag());
  disturbed.model().quantize_weights(disturbed.context());
  disturbed.optimizer().fetch_status(disturbed.context());
  EXPECT_EQ(disturbed.optimizer().status().skipped, 1);
  disturbed.optimizer().finish_step(true);
  EXPECT_EQ(disturbed.read(disturbed.model().recipe().table().scale), scale);
  // Training continues as if the skipped step had not happened.
  EXPECT_EQ(tiny.train_step(1e-2f), disturbed.train_step(1e-2f));
  EXPECT_EQ(tiny.read(tiny.model().parameters().mains), disturbed.read(disturbed.model().parameters().mains));
  EXPECT_EQ(tiny.read(tiny.model().recipe().table().history),
            disturbed.read(disturbed.model().recipe().table().history));
}

TEST(Fp8State, CalibrationOfABf16RunRecordsTheSameOperands) {
  Config config = tiny_config(Family::llama);
  config.precision.dtype = config::ComputeDType::bf16;
  Config fp8 = config;
  fp8.precision.fp8 = Fp8Mode::hybrid;
  config.precision.fp8_calibrate = true;
  TinyModel calibrated(config), quantized(fp8);
  calibrated.train_step(0), quantized.train_step(0);
  const fp8::ScaleTable &a = calibrated.model().recipe().table(), &b = quantized.model().recipe().table();
  ASSERT_EQ(a.size(), b.size());
  ASSERT_EQ(a.size(), 2 * 4 * 3);
  const auto amax_a = calibrated.read(a.last_amax), amax_b = quantized.read(b.last_amax);
  for (int i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a.info(i).linear, b.info(i).linear);
    EXPECT_EQ(a.info(i).format, b.info(i).format);
    EXPECT_GT(amax_a[i], 0) << a.info(i).linear.name() << " " << role_name(a.info(i).role);
    // Weights are the same bits; activations differ because earlier layers used FP8.
    if (a.info(i).role != fp8::OperandRole::weight) continue;
    EXPECT_EQ(amax_a[i], amax_b[i]);
  }
}

TEST(Training, OverfitsOneBatchInEveryPrecision) {
  std::vector<Config> configs = all_precisions();
  for (const Config& variant : all_variants()) configs.push_back(variant);
  for (const Config& config : configs) {
    if (config.model.hidden_dropout > 0) continue;
    TinyModel tiny(config);
    const double first = tiny.train_step(1e-2f);
    double last = first;
    for (int step = 0; step < 60; ++step) last = tiny.train_step(1e-2f);
    EXPECT_LT(last, first * 0.3) << label(config);
  }
}

}  // namespace
}  // namespace te
