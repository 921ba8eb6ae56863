// Gradients in FP8 next to BF16, for both devices: an operand that producer and GEMM lay out in different ways gives
// equal results on both, but no gradient.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "model/tiny_model.h"
#include "testing/testing.h"

namespace te::testing {

/// Runs two steps with learning rate 0, so that delayed scaling has scales, and compares the third one's gradients with
/// BF16. All tokens use all experts, 256 rows each, which is more than a block of 128.
inline void check_fp8_gradients_of_experts(Context (*device)()) {
  config::Config config = tiny_config(config::Family::llama);
  set_experts(config.model);
  config.model.hidden_size = 128, config.model.ffn_hidden_size = 256, config.model.kv_channels = 32;
  config.model.moe_ffn_hidden_size = 128, config.model.moe_shared_expert_intermediate_size = 64;
  config.model.moe_router_topk = config.model.num_moe_experts;
  config.model.seq_length = config.model.max_position_embeddings = 128;
  config.model.init_method_std = 0.05;
  config.precision.dtype = config::ComputeDType::bf16;
  config.precision.amax_history_len = 4;
  config.training.device = config::DeviceChoice::automatic;
  const auto gradients = [&] {
    TinyModel tiny(config, device());
    for (int step = 0; step < 2; ++step) tiny.train_step(0.0f);
    tiny.forward_backward();
    std::map<std::string, std::vector<float>> all;
    for (const parameters::Parameter& parameter : tiny.model().parameters().parameters())
      all[parameter.name] = tiny.read(parameter.grad);
    return all;
  };
  const auto expected = gradients();
  config.precision.fp8 = config::Fp8Mode::hybrid;
  for (const auto recipe :
       {config::Fp8Recipe::delayed, config::Fp8Recipe::tensorwise, config::Fp8Recipe::blockwise}) {
    config.precision.fp8_recipe = recipe;
    for (const auto& [name, gradient] : gradients()) {
      EXPECT_LT(relative_error(gradient, expected.at(name)), 0.25) << to_string(recipe) << " " << name;
    }
  }
}

}  // namespace te::testing
