// LoRA adapters of a mixture of experts: what changes and what does not, recomputation, checkpoints, and the merged
// model.
#include <cmath>
#include <map>
#include <optional>

#include "checkpoint/checkpoint.h"
#include "checkpoint/loader.h"
#include "checkpoint/reader.h"
#include "checkpoint/saver.h"
#include "convert/adapter.h"
#include "convert/foreign_model.h"
#include "model/tiny_model.h"
#include "testing/model_forms.h"
#include "testing/temporary_folder.h"
#include "testing/testing.h"
#include "training_run.h"

namespace te::testing {
namespace {

using config::ComputeDType;
using config::Family;
using config::Fp8Recipe;
using parameters::Parameter;

struct ExpertsForm {
  const char* name;
  ComputeDType dtype = ComputeDType::bf16;
  std::optional<Fp8Recipe> recipe{};
};
constexpr ExpertsForm kExpertsForms[] = {{"fp32", ComputeDType::fp32},
                                         {"bf16"},
                                         {"delayed", ComputeDType::bf16, Fp8Recipe::delayed},
                                         {"tensorwise", ComputeDType::bf16, Fp8Recipe::tensorwise},
                                         {"blockwise", ComputeDType::bf16, Fp8Recipe::blockwise}};

/// A dense layer and a layer of experts with a shared expert.
config::Config experts_config(const ExpertsForm& form) {
  config::Config config = adapter_config(Family::llama);
  set_fp8_experts(config.model);
  config.training.global_batch_size = 4;
  config.precision.dtype = form.dtype;
  if (form.recipe) {
    config.precision.fp8 = config::Fp8Mode::hybrid;
    config.precision.fp8_recipe = *form.recipe;
  }
  config.optimizer.lr = 1e-2;
  config::resolve_defaults(config);
  config::validate(config);
  return config;
}

class LoraExperts : public ::testing::TestWithParam<ExpertsForm> {};

// Router, experts and all other weights of the base keep their bits.
TEST_P(LoraExperts, TrainOnlyTheAdapter) {
  for (const std::vector<std::string>& target :
       {std::vector<std::string>{"all-linear"}, {"down", "gate"}, {"q", "k", "v", "o"}}) {
    config::Config config = experts_config(GetParam());
    config.adapter.target = target;
    config.model.moe_router_enable_expert_bias = true;
    config.model.moe_router_score_function = config::MoeScoreFunction::sigmoid;
    config::validate(config);
    TrainingRun run(config);
    const auto bytes_of = [](const Parameter& parameter) {
      return bytes_at(parameter.dropped ? parameter.rowwise->values : parameter.value);
    };
    std::map<std::string, std::string> before;
    for (const Parameter& parameter : run.parameters()) before[parameter.name] = bytes_of(parameter);
    const float first = run.step(1);
    for (int step = 0; step < 6; ++step) run.step(1);
    EXPECT_LT(run.step(1), 0.999f * first) << target[0];
    size_t adapters = 0;
    for (const Parameter& parameter : run.parameters()) {
      EXPECT_EQ(parameter.trainable, is_adapter(parameter.id.part)) << parameter.name;
      EXPECT_EQ(bytes_of(parameter) == before.at(parameter.name), !parameter.trainable) << parameter.name;
      adapters += parameter.trainable;
    }
    // A and B of qkv and the projection of two layers, and of fc1 and fc2 of the MLP, the experts and the shared
    // expert.
    EXPECT_EQ(adapters, target.size() == 1 ? 20u : target.size() == 2 ? 12u : 8u);
  }
}

TEST_P(LoraExperts, RecomputationGivesTheSameBits) {
  std::vector<float> losses;
  for (const auto recompute :
       {config::Recompute::none, config::Recompute::selective, config::Recompute::full}) {
    config::Config config = experts_config(GetParam());
    config.training.recompute = recompute;
    TrainingRun run(config);
    run.step(1), run.step(2);
    losses.push_back(run.step(3));
    EXPECT_EQ(losses.back(), losses.front());
  }
}

/// Saves the state of a run as step 2.
std::filesystem::path save(TrainingRun& run, const TemporaryFolder& folder,
                           const std::optional<checkpoint::Base>& base) {
  checkpoint::Saver saver(run.context(),
                          {.directory = folder.path(), .config = config::to_yaml(run.config()), .base = base},
                          run.runner().training_state());
  saver.save({2, 8, 2}, {}, true);
  return folder / checkpoint::step_name(2);
}

TEST_P(LoraExperts, ResumeWithTheSameBits) {
  const config::Config config = experts_config(GetParam());
  const TemporaryFolder folder;
  TrainingRun saved(config), resumed(config);
  saved.step(1), saved.step(2);
  const checkpoint::Reader reader(save(saved, folder, checkpoint::Base{"base", 7}));
  for (const Parameter& parameter : saved.parameters())
    EXPECT_EQ(reader.info(parameter.name).has_value(), parameter.trainable) << parameter.name;
  checkpoint::load(resumed.context(), reader, config, resumed.runner().training_state(), {});
  resumed.runner().optimizer().set_updates(2);
  resumed.runner().publish_weights();
  EXPECT_EQ(resumed.step(3), saved.step(3));
  for (size_t i = 0; i < saved.parameters().size(); ++i) {
    const Parameter &a = resumed.parameters()[i], &b = saved.parameters()[i];
    if (a.trainable) {
      EXPECT_EQ(bytes_at(a.main), bytes_at(b.main)) << a.name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, LoraExperts, ::testing::ValuesIn(kExpertsForms),
                         [](const auto& info) { return std::string(info.param.name); });

// The base with the adapter as one model has the loss of the run with the adapter.
TEST(LoraExpertsMerged, LossIsThatOfTheAdapter) {
  for (const std::vector<std::string>& target : {std::vector<std::string>{"all-linear"}, {"up", "down"}}) {
    config::Config config = experts_config(kExpertsForms[0]);
    config.adapter.target = target;
    config::Config plain = config;
    plain.adapter = {};
    plain.checkpoint.init_from = "";
    const TemporaryFolder base_folder, folder;
    TrainingRun base(plain), run(config), merged(plain);
    const std::filesystem::path base_path = save(base, base_folder, std::nullopt);
    for (int step = 0; step < 5; ++step) run.step(1);
    const auto adapter =
        save(run, folder, checkpoint::Base{base_path.string(), checkpoint::Reader(base_path).hash()});
    checkpoint::load_weights(merged.context(), *convert::open_weights(adapter), plain,
                             merged.runner().training_state());
    merged.runner().publish_weights();
    const float loss = run.step(2);
    EXPECT_NEAR(merged.step(2), loss, 2e-6f * loss);
    EXPECT_GT(std::abs(base.step(2) - loss), 1e-3f * loss);
  }
}

}  // namespace
}  // namespace te::testing
