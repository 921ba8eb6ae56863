// The parameter counts of presets match the model.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "config/presets.h"
#include "config/provenance.h"
#include "train/step_runner.h"

namespace te {
namespace {

TEST(PresetParameters, AreThoseOfTheModel) {
  const std::vector<std::string> run = {"training.micro_batch_size=1",
                                        "training.global_batch_size=1",
                                        "training.train_steps=1",
                                        "data.synthetic=true",
                                        "model.num_layers=2",
                                        "model.seq_length=16",
                                        "model.make_vocab_size_divisible_by=1"};
  for (const char* name : {"gpt2", "llama2_7b", "llama3_8b", "llama3.2_1b", "olmoe_1b_7b", "moe_40m_100m"}) {
    const config::Config config = config::load_config({std::string("preset:") + name}, run, nullptr);
    const Context context = Context::cpu();
    train::StepRunner runner(config, context);  // plans; nothing is allocated
    EXPECT_EQ(runner.model().parameters().num_parameters(), config::parameter_count(config.model)) << name;
  }
}

}  // namespace
}  // namespace te
