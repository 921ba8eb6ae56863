// What the shipped configs plan: FP8 never takes more memory than BF16.
#include <gtest/gtest.h>

#include <string>

#include "train/step_runner.h"

namespace te {
namespace {

struct Planned {
  int64_t total, fp8_weights;
};

Planned planned(const std::string& name) {
  const config::Config config =
      config::load_config(std::string(TE_SOURCE_DIR) + "/configs/" + name + ".yaml", {"training.device=cpu"});
  const Context context = Context::cpu();
  const train::StepRunner runner(config, context);  // plans; nothing is allocated
  return {runner.plan().total_bytes(), runner.plan().bytes(MemoryKind::fp8_weights)};
}

TEST(Plan, OfEveryShippedFp8ConfigIsSmallerThanThatOfItsTwin) {
  for (const std::string name : {"quickstart", "gpt2_124m", "llama_1b", "llama7b"})
    EXPECT_LT(planned(name + "_fp8").total, planned(name + "_bf16").total) << name;
}

// BF16 values and remainders are all that stays of a weight of these.
TEST(Plan, KeepsNoFp8WeightsBesideRemainders) {
  EXPECT_EQ(planned("llama7b_fp8").fp8_weights, 0);
  EXPECT_GT(planned("llama_1b_fp8").fp8_weights, 0);
}

}  // namespace
}  // namespace te
