// Gradients in FP8 next to BF16, for both devices: an operand that producer and GEMM lay out in different ways gives
// equal results on both, but no gradient.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "model/tiny_model.h"
#include "testing/testing.h"

namespace te::testing {

/// `config`: of experts in BF16, with 256 tokens. Runs two steps with learning rate 0, so that delayed scaling has
/// scales, and compares the third one's gradients with BF16. All tokens use all experts, so that each has more rows
/// than a block.
inline void check_fp8_gradients_of_experts(config::Config config, Context (*device)()) {
  config.model.moe_router_topk = config.model.num_moe_experts;
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
