// Training with parameters that are not trained: they keep their bits and have no gradient, master weight or moments;
// the others get the gradients that they get when everything is trained.
#include <algorithm>
#include <map>

#include "checkpoint/checkpoint.h"
#include "checkpoint/loader.h"
#include "checkpoint/reader.h"
#include "checkpoint/reshard.h"
#include "checkpoint/saver.h"
#include "model/tiny_model.h"
#include "testing/temporary_folder.h"
#include "testing/testing.h"
#include "training_run.h"

namespace te::testing {
namespace {

using config::ComputeDType;
using config::Family;
using config::Fp8Mode;
using config::Fp8Recipe;
using parameters::Parameter;

bool trains_vectors(const ParameterId& id) {
  return is_norm(id.role) || id.part == ParameterPart::bias;
}
bool trains_last_layer(const ParameterId& id) {
  return id.layer == 1 || id.role == ParameterRole::final_norm;
}
bool trains_positions_and_projections(const ParameterId& id) {
  return id.role == ParameterRole::position_embeddings || id.role == ParameterRole::linear_proj ||
         id.role == ParameterRole::linear_fc2;
}
bool trains_all_but_linears(const ParameterId& id) {
  return !linear_kind_of(id.role) || id.part == ParameterPart::bias || id.role == ParameterRole::output_layer;
}
constexpr bool (*kTrains[])(const ParameterId&) = {trains_vectors, trains_last_layer,
                                                   trains_positions_and_projections, trains_all_but_linears};

struct TrainedForm {
  const char* name;
  Family family;
  void (*set)(config::Config&);
};
const TrainedForm kTrainedForms[] = {
    {"gpt_fp32", Family::gpt, [](config::Config&) {}},
    {"gpt_bf16", Family::gpt, [](config::Config& c) { c.precision.dtype = ComputeDType::bf16; }},
    {"llama_bf16_remainders_full_recompute", Family::llama,
     [](config::Config& c) {
       c.precision.dtype = ComputeDType::bf16;
       c.optimizer.store_param_remainders = true;
       c.training.recompute = config::Recompute::full;
     }},
    {"gpt_fp8_delayed", Family::gpt,
     [](config::Config& c) {
       c.precision.dtype = ComputeDType::bf16;
       c.precision.fp8 = Fp8Mode::hybrid;
     }},
    {"llama_fp8_blockwise_muon", Family::llama,
     [](config::Config& c) {
       c.precision.dtype = ComputeDType::bf16;
       c.precision.fp8 = Fp8Mode::hybrid;
       c.precision.fp8_recipe = Fp8Recipe::blockwise;
       c.model.qk_norm = config::QkNorm::head;
       c.optimizer.name = config::OptimizerName::muon;
     }},
    {"llama_fp8_tensorwise_fp8_moments", Family::llama,
     [](config::Config& c) {
       c.precision.dtype = ComputeDType::bf16;
       c.precision.fp8 = Fp8Mode::hybrid;
       c.precision.fp8_recipe = Fp8Recipe::tensorwise;
       c.training.recompute = config::Recompute::selective;
       c.optimizer.exp_avg_dtype = c.optimizer.exp_avg_sq_dtype = config::MomentDType::fp8;
     }},
    {"llama_experts_bf16", Family::llama,
     [](config::Config& c) {
       c.precision.dtype = ComputeDType::bf16;
       set_experts(c.model);
     }},
};

config::Config config_of_form(const TrainedForm& form) {
  config::Config config = tiny_config(form.family);
  config.training.global_batch_size = 4;
  form.set(config);
  config::resolve_defaults(config);
  config::validate(config);
  return config;
}

class UntrainedParameters : public ::testing::TestWithParam<TrainedForm> {};

TEST_P(UntrainedParameters, KeepTheirBitsAndLeaveOtherGradientsAsTheyAre) {
  const config::Config config = config_of_form(GetParam());
  for (const auto trains : kTrains) {
    TrainingRun all(config, {}), some(config, trains);
    std::map<std::string, std::string> initial;
    for (const Parameter& parameter : some.parameters())
      if (!parameter.trainable) initial[parameter.name] = bytes_at(parameter.value);
    EXPECT_FALSE(initial.empty());
    EXPECT_EQ(some.step(1), all.step(1));
    size_t trained = 0;
    for (size_t i = 0; i < all.parameters().size(); ++i) {
      const Parameter &actual = some.parameters()[i], &expected = all.parameters()[i];
      EXPECT_EQ(actual.trainable, trains(actual.id));
      if (!actual.trainable) {
        EXPECT_FALSE(actual.grad) << actual.name;
        continue;
      }
      EXPECT_EQ(bytes_at(actual.grad), bytes_at(expected.grad)) << actual.name;
      ++trained;
    }
    EXPECT_GT(trained, 0u);
    some.step(2), some.step(3);
    for (const Parameter& parameter : some.parameters()) {
      if (parameter.trainable) continue;
      EXPECT_EQ(bytes_at(parameter.value), initial.at(parameter.name)) << parameter.name;
    }
    EXPECT_GT(some.runner().optimizer().status().grad_norm, 0.0f);
  }
}

TEST_P(UntrainedParameters, HaveNoGradientMasterWeightOrMoments) {
  const config::Config config = config_of_form(GetParam());
  TrainingRun all(config, {}), some(config, trains_last_layer);
  const parameters::ParameterStore& store = some.runner().model().parameters();
  int64_t trained = 0;
  for (const Parameter& parameter : store.parameters())
    trained +=
        parameter.trainable ? kernels::granules_of(parameter.shape.numel()) * kernels::kAdamWGranule : 0;
  EXPECT_EQ(store.shard_size(), trained);
  EXPECT_EQ(some.runner().optimizer().exp_avg.count(), trained);
  EXPECT_LE(some.runner().optimizer().exp_avg_sq.count(), trained);
  EXPECT_EQ(store.grads.numel(), trained);
  for (const MemoryKind kind : {MemoryKind::main_grads, MemoryKind::optimizer})
    EXPECT_LT(some.runner().plan().bytes(kind), all.runner().plan().bytes(kind));
  if (config.precision.dtype != ComputeDType::fp32) {
    EXPECT_LT(some.runner().plan().bytes(MemoryKind::main_params),
              all.runner().plan().bytes(MemoryKind::main_params));
  }
  EXPECT_LT(some.runner().plan().total_bytes(), all.runner().plan().total_bytes());
}

TEST_P(UntrainedParameters, AreQuantizedOnce) {
  const config::Config config = config_of_form(GetParam());
  if (config.precision.fp8 == Fp8Mode::off) GTEST_SKIP() << "nothing is quantized";
  TrainingRun run(config, trains_last_layer);
  run.step(1);
  run.step(2, true);
  fp8::ScaleTable& table = run.runner().model().recipe().table();
  for (int i = 0; i < table.size(); ++i) {
    if (table.info(i).role != fp8::OperandRole::weight) continue;
    const bool quantized = table.counters_of(i)->total > 0;
    EXPECT_EQ(quantized, table.info(i).linear.layer == 1) << table.info(i).linear.name();
  }
  // New values are quantized again.
  run.runner().publish_weights();
  for (const Parameter& parameter : run.parameters())
    EXPECT_TRUE(parameters::ParameterStore::needs_quantization(parameter)) << parameter.name;
}

// A resumed run has the bits of an uninterrupted one. The checkpoint has the values, and no moments, of what is not
// trained; a run that trains everything can start from its weights.
TEST_P(UntrainedParameters, AreSavedAndLoaded) {
  const config::Config config = config_of_form(GetParam());
  TemporaryFolder folder;
  TrainingRun saved(config, trains_last_layer);
  saved.step(1), saved.step(2);
  checkpoint::Saver saver(saved.context(), {.directory = folder.path(), .config = config::to_yaml(config)},
                          saved.runner().training_state());
  saver.save({2, 8, 2}, {}, true);
  const checkpoint::Reader reader(folder / checkpoint::step_name(2));
  config::Config other = config;
  other.training.seed += 1;
  TrainingRun resumed(other, trains_last_layer), started(other, {});
  checkpoint::load(resumed.context(), reader, resumed.config(), resumed.runner().training_state(), {});
  resumed.runner().optimizer().set_updates(2);
  resumed.runner().publish_weights();
  for (const Parameter& parameter : saved.parameters()) {
    EXPECT_EQ(reader.info("exp_avg/" + parameter.name).has_value(), parameter.trainable) << parameter.name;
    const bool has_16_bits = !parameter.trainable && config.precision.dtype == ComputeDType::bf16;
    EXPECT_EQ(reader.info(parameter.name)->dtype, has_16_bits ? DType::bf16 : DType::f32) << parameter.name;
  }
  for (size_t i = 0; i < saved.parameters().size(); ++i) {
    const Parameter& expected = saved.parameters()[i];
    if (expected.trainable) continue;
    EXPECT_EQ(bytes_at(resumed.parameters()[i].value), bytes_at(expected.value)) << expected.name;
  }
  EXPECT_EQ(resumed.step(3), saved.step(3));
  checkpoint::load_weights(started.context(), reader, started.config(), started.runner().training_state());
  started.runner().publish_weights();
  parameters::ParameterStore& store = started.runner().model().parameters();
  for (const Parameter& expected : saved.parameters()) {
    if (expected.trainable || config.precision.dtype == ComputeDType::fp32) continue;
    const Parameter& actual = *std::ranges::find(store.parameters(), expected.id, &Parameter::id);
    if (!actual.value) continue;
    EXPECT_EQ(bytes_at(actual.value), bytes_at(expected.value)) << expected.name;
  }
}

// Resharding does not look for moments that a run did not have.
TEST(Untrained, AreResharded) {
  const config::Config config = config_of_form(kTrainedForms[1]);
  TemporaryFolder folder, other;
  TrainingRun saved(config, trains_last_layer);
  saved.step(1);
  checkpoint::Saver saver(saved.context(), {.directory = folder.path(), .config = config::to_yaml(config)},
                          saved.runner().training_state());
  saver.save({1, 4, 1}, {}, true);
  const checkpoint::Reader reader(folder / checkpoint::step_name(1));
  const checkpoint::Reader resharded(
      checkpoint::reshard(reader, config, parallel::ProcessGrid::of(2, 1, 1, 1), other.path()));
  EXPECT_EQ(resharded.tensors().size(), reader.tensors().size());
  TrainingRun loaded(config, trains_last_layer);
  checkpoint::load(loaded.context(), resharded, loaded.config(), loaded.runner().training_state(), {});
  loaded.runner().optimizer().set_updates(1);
  loaded.runner().publish_weights();
  EXPECT_EQ(loaded.step(2), saved.step(2));
}

INSTANTIATE_TEST_SUITE_P(Forms, UntrainedParameters, ::testing::ValuesIn(kTrainedForms),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace te::testing
