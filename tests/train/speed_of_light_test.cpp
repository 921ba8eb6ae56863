// Speed-of-light times compared with values computed by hand.
#include "train/speed_of_light.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "train/flops.h"

namespace te::train {
namespace {

// 8 sequences of 32 tokens are 256 tokens per step.
constexpr const char* kGpt = R"(
model: {family: gpt, num_layers: 2, hidden_size: 64, num_attention_heads: 4, vocab_size: 100, seq_length: 32}
training: {micro_batch_size: 2, global_batch_size: 8, train_steps: 10}
data: {synthetic: true}
)";
constexpr const char* kLlama = R"(
model: {family: llama, num_layers: 2, hidden_size: 64, ffn_hidden_size: 96, num_attention_heads: 4,
        num_query_groups: 2, vocab_size: 100, seq_length: 32}
training: {micro_batch_size: 2, global_batch_size: 8, train_steps: 10}
data: {synthetic: true}
)";
constexpr double kTokens = 256, kBf16 = 989.4e12, kFp8 = 1978.9e12, kBandwidth = 3.35e12;

config::Config config_of(const char* yaml, const std::vector<std::string>& keys = {}) {
  return config::parse_config(yaml, "test", keys);
}

void expect_seconds(const config::Config& config, double fp8, double high_precision, double update_bytes,
                    int ranks = 1) {
  const TokenFlops flops = token_flops(config);
  EXPECT_EQ(flops.fp8, fp8);
  EXPECT_EQ(flops.high_precision, high_precision);
  const auto time = speed_of_light(config, gpu_model("NVIDIA H100 80GB HBM3"), ranks);
  ASSERT_TRUE(time.has_value());
  const double update = update_bytes / kBandwidth;
  EXPECT_NEAR(time->fp8_step * ranks / (kTokens * (fp8 / kFp8 + high_precision / kBf16) + update), 1, 1e-12);
  EXPECT_NEAR(time->high_precision_step * ranks / (kTokens * (fp8 + high_precision) / kBf16 + update), 1,
              1e-12);
}

// GEMMs of a layer: linear_qkv 64 x 192, linear_proj 64 x 64, linear_fc1 and linear_fc2 64 x 256: 49,152. Output
// layer: 64 x 128. Attention: 6 x 2 layers x 32 x 64. Parameters: embeddings (128 + 32) x 64, final norm 128; biases of
// a layer 192 + 64 + 256 + 64, and its two norms of 128.
constexpr double kGptLinears = 6.0 * 2 * 49152, kGptOthers = 6.0 * 64 * 128 + 6.0 * 2 * 32 * 64;
constexpr double kGptParameters = 160 * 64 + 128 + 2 * (49152 + 576 + 256);

TEST(SpeedOfLight, GptInBf16AndFp8) {
  // FP32 gradients, master weights and two moments: 4 + 2 (4 + 4 + 4) bytes.
  expect_seconds(config_of(kGpt), 0, kGptLinears + kGptOthers, 28 * kGptParameters);
  expect_seconds(config_of(kGpt, {"precision.fp8=hybrid"}), kGptLinears, kGptOthers, 28 * kGptParameters);
  // BF16 gradients and FP8 moments: 2 + 2 (4 + 1 + 1).
  expect_seconds(config_of(kGpt, {"optimizer.main_grad_dtype=bf16", "optimizer.exp_avg_dtype=fp8",
                                  "optimizer.exp_avg_sq_dtype=fp8"}),
                 0, kGptLinears + kGptOthers, 14 * kGptParameters);
}

TEST(SpeedOfLight, OverridesAndEmulatedRecipes) {
  // Layer 1 remains in FP8, without linear_fc2's wgrad.
  const double fp8 = kGptLinears / 2 - 2.0 * 64 * 256;
  expect_seconds(
      config_of(kGpt, {"precision.fp8=hybrid", "precision.overrides=layers 0: bf16; linear_fc2 wgrad: bf16"}),
      fp8, kGptLinears + kGptOthers - fp8, 28 * kGptParameters);
  const double output = 6.0 * 64 * 128;
  expect_seconds(config_of(kGpt, {"precision.fp8=hybrid", "precision.overrides=output_layer: tensorwise"}),
                 kGptLinears + output, kGptOthers - output, 28 * kGptParameters);
  expect_seconds(config_of(kGpt, {"precision.fp8=hybrid", "precision.fp8_recipe=mxfp8"}), 0,
                 kGptLinears + kGptOthers, 28 * kGptParameters);
}

TEST(SpeedOfLight, RanksShareTheWork) {
  const std::vector<std::string> layout{"parallel.tensor=2", "parallel.pipeline=2", "parallel.context=2"};
  expect_seconds(config_of(kGpt, layout), 0, kGptLinears + kGptOthers, 28 * kGptParameters, 8);
}

// A dense layer, and one with two of four experts of 32, a shared one of 16, and a router with the shared one's gate.
TEST(SpeedOfLight, ExpertsThatATokenUses) {
  const double attention = 64 * 128 + 64 * 64, dense = 3 * 64 * 96, expert = 3 * 64 * 32,
               shared = 3 * 64 * 16, router = 64 * (4 + 1);
  const double fp8 = 6 * (2 * attention + dense + 2 * expert + shared);
  const double others = 6 * (64 * 128 + router) + 6.0 * 2 * 32 * 64;
  const double parameters =
      2 * 64 * 128 + 64 + 2 * (attention + 2 * 64) + dense + 4 * expert + shared + router;
  expect_seconds(
      config_of(kLlama, {"precision.fp8=hybrid", "model.num_moe_experts=4", "model.moe_ffn_hidden_size=32",
                         "model.moe_shared_expert_intermediate_size=16", "model.moe_shared_expert_gate=true",
                         "model.first_k_dense=1"}),
      fp8, others, 28 * parameters);
}

// linear_fc1 has no gate, and norms have no gains.
TEST(SpeedOfLight, SquaredReluHasTwoMatrices) {
  const double attention = 64 * 128 + 64 * 64, fc = 64 * 96;
  expect_seconds(config_of(kLlama, {"precision.fp8=hybrid", "precision.overrides=linear_fc2: bf16",
                                    "model.activation=relu2", "model.norm_gain=false"}),
                 6 * 2 * (attention + fc), 6 * (64 * 128 + 2 * fc) + 6.0 * 2 * 32 * 64,
                 28 * (2 * 64 * 128 + 2 * (attention + 2 * fc)));
}

// Frozen weights have no wgrad and no update; A and B of q, of rank 8, run in BF16.
TEST(SpeedOfLight, AdaptersLeaveOutWgrad) {
  const double linears = 2 * (64 * 128 + 64 * 64 + 3 * 64 * 96), adapters = 2 * 8 * (64 + 64);
  expect_seconds(config_of(kLlama, {"precision.fp8=hybrid", "adapter.type=lora", "adapter.rank=8",
                                    "adapter.target=[q]", "checkpoint.init_from=base"}),
                 4 * linears, 4 * 64 * 128 + 6 * adapters + 6.0 * 2 * 32 * 64, 28 * adapters);
}

// Muon has one moment of the layers' matrices.
TEST(SpeedOfLight, MuonHasOneMoment) {
  expect_seconds(config_of(kGpt, {"optimizer.name=muon"}), 0, kGptLinears + kGptOthers,
                 28 * kGptParameters - 8 * 2 * 49152);
}

TEST(SpeedOfLight, NeedsKnownRates) {
  EXPECT_FALSE(speed_of_light(config_of(kGpt), nullptr, 1).has_value());
  EXPECT_FALSE(
      speed_of_light(config_of(kGpt, {"precision.dtype=fp32"}), gpu_model("NVIDIA H200"), 1).has_value());
}

}  // namespace
}  // namespace te::train
