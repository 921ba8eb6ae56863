// Expert parallelism uses scratch memory only in its lifetime (TinyModel overwrites it outside), and recomputation
// changes no bit of the gradients, also of rows that arrive in several rounds.
#include <cmath>

#include "model/tiny_model.h"
#include "parallel/groups.h"
#include "testing/mpi.h"
#include "testing/testing.h"

namespace te::testing {
namespace {

using config::Fp8KeptWeights;
using config::Fp8Mode;
using config::Fp8Recipe;
using config::Recompute;

int64_t different(const std::vector<float>& a, const std::vector<float>& b) {
  int64_t count = 0;
  for (size_t i = 0; i < a.size(); ++i) count += a[i] == b[i] ? 0 : 1;
  return count;
}

config::Config experts_config(Fp8Mode mode, Fp8Recipe recipe, double factor) {
  config::Config config = tiny_config(config::Family::llama);
  set_fp8_experts(config.model);
  config.model.num_moe_experts = 6;
  config.precision.dtype = config::ComputeDType::bf16;
  config.precision.fp8 = mode;
  config.precision.fp8_recipe = recipe;
  config.precision.amax_history_len = 4;
  config.parallel.expert = 2;
  config.parallel.moe_dispatch_factor = factor;
  return config;
}

TEST(ExpertParallelModel, RecomputationChangesNoBit) {
  if (world().size() != 2) GTEST_SKIP() << "two ranks divide six experts";
  const parallel::Groups groups =
      parallel::Groups::connect(world(), Context::cpu(), parallel::ProcessGrid::of(2, 1, 1, 1, 2));
  for (const auto& [mode, recipe] : {std::pair{Fp8Mode::off, Fp8Recipe::delayed},
                                     {Fp8Mode::hybrid, Fp8Recipe::delayed},
                                     {Fp8Mode::hybrid, Fp8Recipe::tensorwise},
                                     {Fp8Mode::hybrid, Fp8Recipe::blockwise}}) {
    for (const double factor : {2.0, 0.4}) {
      SCOPED_TRACE(fmt::format("{} {}, factor {}", to_string(mode), to_string(recipe), factor));
      config::Config config = experts_config(mode, recipe, factor);
      const auto gradients = [&] {
        TinyModel tiny(config, groups);
        tiny.set_batch(static_cast<uint64_t>(world().rank()) + 1);
        tiny.forward_backward();
        tiny.add_microbatch();
        EXPECT_EQ(*tiny.model().routing().rounds, 0);  // the first layer has no experts
        EXPECT_GE(tiny.model().routing().rounds[1], factor < 1 ? 4 : 2);
        return tiny.read(tiny.model().parameters().grads);
      };
      const std::vector<float> kept = gradients();
      for (const float gradient : kept) ASSERT_TRUE(std::isfinite(gradient));
      for (const Recompute recompute : {Recompute::selective, Recompute::full}) {
        config.training.recompute = recompute;
        EXPECT_EQ(different(kept, gradients()), 0) << to_string(recompute);
      }
      if (mode == Fp8Mode::off) continue;
      config.precision.fp8_keep_weights = Fp8KeptWeights::none;
      EXPECT_EQ(different(kept, gradients()), 0);
    }
  }
}

}  // namespace
}  // namespace te::testing
