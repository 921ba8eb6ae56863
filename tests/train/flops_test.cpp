// FLOPs per token compared with values computed by hand.
#include "train/flops.h"

#include <gtest/gtest.h>

#include "testing/model_forms.h"

namespace te {
namespace {

TEST(Flops, Llama2_7B) {
  config::ModelConfig model;
  model.family = config::Family::llama;
  model.num_layers = 32;
  model.hidden_size = 4096;
  model.ffn_hidden_size = 11008;
  model.num_attention_heads = model.num_query_groups = 32;
  model.kv_channels = 128;
  model.vocab_size = 32000;
  model.seq_length = 4096;
  // A layer: q, k, v and the projection 4 * 4096^2 = 67,108,864; gate, up and down 3 * 4096 * 11008 =
  // 135,266,304. 32 layers: 6,476,005,376. Output layer: 4096 * 32000 = 131,072,000. Together 6,607,077,376, times 6.
  // Attention: 6 * 4096 * 4096 * 32 = 3,221,225,472.
  EXPECT_EQ(train::flops_per_token(model), 39'642'464'256.0 + 3'221'225'472.0);
}

TEST(Flops, Gpt2_124M) {
  config::ModelConfig model;
  model.family = config::Family::gpt;
  model.num_layers = 12;
  model.hidden_size = 768;
  model.ffn_hidden_size = 3072;
  model.num_attention_heads = model.num_query_groups = 12;
  model.kv_channels = 64;
  model.vocab_size = 50257;
  model.seq_length = 1024;
  // A layer: 12 * 768^2 = 7,077,888, twelve of them 84,934,656. Output layer, with the padded vocabulary: 768 * 50304
  // = 38,633,472. Together 123,568,128, times 6. Attention: 6 * 1024 * 768 * 12 = 56,623,104.
  EXPECT_EQ(train::flops_per_token(model), 741'408'768.0 + 56'623'104.0);
}

// A window of 2 in sequences of 8: 1 + 7 * 2 = 15 scores instead of 36, or 2 (16 - 2) = 28 instead of 64 by area. A
// window that is not shorter than the sequence has no effect.
TEST(Flops, SlidingWindowReducesOnlyAttention) {
  config::ModelConfig model;
  model.num_layers = 3;
  model.hidden_size = model.ffn_hidden_size = 16;
  model.num_attention_heads = model.num_query_groups = 2;
  model.kv_channels = 8;
  model.vocab_size = 10;
  model.seq_length = 8;
  const double full = train::flops_per_token(model);
  model.sliding_window = 8;
  EXPECT_EQ(train::flops_per_token(model), full);
  model.sliding_window = 2;
  EXPECT_EQ(full - train::flops_per_token(model), 3 * 6.0 * (8.0 - 28.0 / 8) * 16);
  model.window_pattern = "w f";  // in the first and the third layer
  EXPECT_EQ(full - train::flops_per_token(model), 2 * 6.0 * (8.0 - 28.0 / 8) * 16);
}

// Only the experts that a token uses count.
TEST(Flops, Experts) {
  config::ModelConfig model;
  model.num_layers = 2;
  model.hidden_size = 8;
  model.ffn_hidden_size = 16;
  model.num_attention_heads = model.num_query_groups = 2;
  model.kv_channels = 4;
  model.vocab_size = 10;
  model.seq_length = 3;
  const double dense = train::flops_per_token(model);
  model.num_moe_experts = 6;
  model.moe_router_topk = 2;
  model.moe_ffn_hidden_size = 5;
  model.moe_shared_expert_intermediate_size = 7;
  model.moe_shared_expert_gate = true;
  model.first_k_dense = 1;
  // Instead of 3 * 8 * 16 = 384: two experts 2 * 3 * 8 * 5 = 240, the shared one 3 * 8 * 7 = 168, router 48, gate 8.
  EXPECT_EQ(train::flops_per_token(model) - dense, 6.0 * (240 + 168 + 48 + 8 - 384));
}

TEST(Flops, GroupedQueriesReduceOnlyKeysAndValues) {
  config::ModelConfig model;
  model.num_layers = 1;
  model.hidden_size = 8;
  model.ffn_hidden_size = 16;
  model.num_attention_heads = 4;
  model.num_query_groups = 2;
  model.kv_channels = 4;  // heads wider than hidden / heads
  model.vocab_size = 10;
  model.make_vocab_size_divisible_by = 1;
  model.seq_length = 3;
  // qkv 8 * 32, projection 16 * 8, fc1 8 * 32, fc2 16 * 8, output layer 8 * 10: 256 + 128 + 256 + 128 + 80 = 848.
  EXPECT_EQ(train::flops_per_token(model), 6.0 * 848 + 6.0 * 3 * 16);
}

// Llama with grouped queries: the weights' GEMMs without wgrad, and three GEMMs of A and B each.
TEST(Flops, OfAdapters) {
  config::Config config;
  config.model.num_layers = 3;
  config.model.hidden_size = 16;
  config.model.ffn_hidden_size = 24;
  config.model.num_attention_heads = 4;
  config.model.num_query_groups = 2;
  config.model.kv_channels = 4;
  config.model.vocab_size = 32;
  config.model.make_vocab_size_divisible_by = 1;
  config.model.seq_length = 8;
  const double all = train::flops_per_token(config);
  EXPECT_EQ(all, train::flops_per_token(config.model));
  config.adapter.type = config::AdapterType::lora;
  config.adapter.rank = 8;
  config.adapter.target = {"q", "down"};
  const double weights = 16 * (16 + 8 + 8) + 16 * 16 + 3 * 16 * 24, adapters = 8 * (16 + 16) + 8 * (24 + 16);
  EXPECT_EQ(train::flops_per_token(config), all - 2 * (3 * weights + 16 * 32) + 6 * 3 * adapters);
  config::Config experts = config;
  testing::set_experts(experts.model);
  experts.adapter.target = {"q"};
  const double whole = train::flops_per_token(experts.model);
  double frozen = 16 * 32;
  for (int64_t layer = 0; layer < 3; ++layer)
    frozen +=
        16 * (16 + 8 + 8) + 16 * 16 + static_cast<double>(experts.model.feed_forward_weights(layer, true));
  EXPECT_EQ(train::flops_per_token(experts), whole - 2 * frozen + 6 * 3 * 8 * (16 + 16));
  // A dense layer, and two layers with two selected experts and a shared one.
  experts.adapter.target = {"up", "down"};
  EXPECT_EQ(train::flops_per_token(experts),
            whole - 2 * frozen + 6 * 8 * 2 * ((16 + 24) + 2 * (2 * (16 + 20) + (16 + 12))));
  config.adapter.train_embeddings = true;
  EXPECT_EQ(train::flops_per_token(config), all - 2 * 3 * weights + 6 * 3 * adapters);
}

}  // namespace
}  // namespace te
