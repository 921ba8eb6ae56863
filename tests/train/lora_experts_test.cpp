// LoRA adapters of a mixture of experts: what changes and what does not, recomputation, checkpoints, and the merged
// model.
#include <cmath>
#include <map>
#include <optional>

#include "checkpoint/checkpoint.h"
#include "checkpoint/reader.h"
#include "checkpoint/saver.h"
#include "convert/exporter.h"
#include "core/strings.h"
#include "model/tiny_model.h"
#include "peft_run.h"
#include "testing/files.h"
#include "testing/model_forms.h"
#include "testing/temporary_folder.h"
#include "testing/testing.h"
#include "train/summary.h"

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
    config.model.moe_router_score_function = config::RouterScore::sigmoid;
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
    config.adapter.dropout = 0.1;
    TrainingRun run(config);
    run.step(1), run.step(2);
    losses.push_back(run.step(3));
    EXPECT_EQ(losses.back(), losses.front());
  }
}

// The base is held in FP8 only, with the bits of one that is quantized from BF16 in every pass, which a guard needs.
TEST_P(LoraExperts, HeldBaseGivesTheBitsOfABf16Base) {
  if (!GetParam().recipe) GTEST_SKIP() << "nothing is quantized";
  for (const auto layouts : {config::Fp8KeptWeights::rowwise, config::Fp8KeptWeights::both}) {
    config::Config config = experts_config(GetParam());
    config.precision.fp8_keep_weights = layouts;
    config::Config mixed = config;
    mixed.guard.every = 1000;
    TrainingRun held(config), kept(mixed);
    expect_bits_of_kept_base(held, kept);
    for (const Parameter& p : held.parameters())
      EXPECT_EQ(!p.value, p.name.find("linear_") != std::string::npos && !p.trainable) << p.name;
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

// Two of five experts: weights of 3 x 128 x 64, and adapters of rank 8.
TEST(LoraExpertsSummary, CountsActiveParameters) {
  const config::Config config = experts_config(kExpertsForms[1]);
  TrainingRun run(config);
  const int64_t unused = 3 * (3 * 128 * 64 + 3 * 8 * (128 + 64));
  const std::string active = with_separators(train::total_parameters(config) - unused);
  TE_EXPECT_CONTAINS(train::model_summary(config, run.runner().model().parameters(), true),
                     fmt::format("  {:<26}{:>16}  (2 of 5 experts", "active parameters", active));
}

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

// The run holds the codes of a folder in FP8, with scales of blocks or a scale per expert.
TEST(LoraExpertsBase, HoldsTheCodesOfTheFolder) {
  for (const auto& [format, recipe] : {std::pair{convert::Fp8Format::block, Fp8Recipe::blockwise},
                                       {convert::Fp8Format::tensor, Fp8Recipe::delayed},
                                       {convert::Fp8Format::tensor, Fp8Recipe::tensorwise}}) {
    SCOPED_TRACE(to_string(recipe));
    config::Config config = experts_config({"", ComputeDType::bf16, Fp8Recipe::delayed});
    config.model.moe_ffn_hidden_size = config.model.ffn_hidden_size = 128;
    config.model.moe_shared_expert_intermediate_size = config.model.first_k_dense = 0;
    config.model.moe_shared_expert_gate = false;
    config.model.moe_aux_loss_coeff = config.model.moe_z_loss_coeff = 0;
    config::Config plain = config;
    plain.adapter = {};
    plain.checkpoint.init_from = "";
    const TemporaryFolder folder;
    TrainingRun base(plain);
    base.step(1);
    const convert::ExportSource source(save(base, folder, std::nullopt));
    const fs::path stored = folder / "fp8";
    fs::create_directory(stored);
    convert::write_hugging_face(source, stored, {.dtype = {}, .kept = {}, .fp8 = format}, [](int64_t) {});
    config.precision.fp8_recipe = recipe;
    config.precision.fp8_keep_weights = config::Fp8KeptWeights::rowwise;
    config.checkpoint.init_from = stored.string();
    TrainingRun run(config);
    const convert::ForeignModel foreign = convert::open_hugging_face(stored);
    checkpoint::load_weights(run.context(), foreign, config, run.runner().training_state());
    run.runner().publish_weights();
    const SafetensorsReader file((stored / "model.safetensors").string());
    std::string down, up;
    for (int expert = 0; expert < 5; ++expert)
      for (const char* name : {"w2", "w1", "w3"}) {
        const SafetensorsTensor& tensor =
            file.at(fmt::format("model.layers.1.block_sparse_moe.experts.{}.{}.weight", expert, name));
        (name[1] == '2' ? down : up).append(reinterpret_cast<const char*>(tensor.data), tensor.bytes);
      }
    for (const Parameter& parameter : run.parameters()) {
      if (parameter.name == "layers.1.mlp.experts.linear_fc2.weight") {
        EXPECT_EQ(bytes_at(parameter.rowwise->values) == down, true);
      }
      if (parameter.name == "layers.1.mlp.experts.linear_fc1.weight") {
        EXPECT_EQ(bytes_at(parameter.rowwise->values) == up, true);
      }
    }
    // The same values as those that the folder's codes and multipliers stand for.
    config::Config wide = config;
    wide.precision.fp8 = config::Fp8Mode::off;
    TrainingRun unquantized(wide);
    checkpoint::load_weights(unquantized.context(), foreign, wide, unquantized.runner().training_state());
    unquantized.runner().publish_weights();
    const float expected = unquantized.step(1);
    set_scales_to_one(run.context(), run.runner().model().recipe());
    EXPECT_NEAR(run.step(1), expected, 2e-2f * expected);
  }
}

/// Mean cross-entropy of logits [rows, vocabulary].
double cross_entropy(const std::vector<float>& logits, const std::vector<int32_t>& targets, size_t rows) {
  const size_t width = logits.size() / rows;
  double sum = 0;
  for (size_t row = 0; row < rows; ++row) {
    const float* const of_row = logits.data() + row * width;
    double total = 0;
    for (size_t i = 0; i < width; ++i) total += std::exp(double{of_row[i]});
    sum += std::log(total) - of_row[targets[row]];
  }
  return sum / static_cast<double>(rows);
}

// PEFT's adapter of fused experts: gate and up share A.
TEST(LoraExpertsPeft, FusedAdapterHasTheLogitsOfPeft) {
  PeftFixture fixture = kPeftExperts;
  fixture.adapter = "all_experts";
  PeftRun peft(ComputeDType::fp32, fixture);
  load_base_and_adapter(peft.run, fixture.folder / fixture.adapter);
  const auto logits = stored_values<float>(peft.expected, "logits_of_all_experts"),
             other = stored_values<float>(peft.expected, "logits");
  const auto targets = stored_values<int32_t>(peft.expected, "targets");
  const auto rows =
      static_cast<size_t>(peft.config.training.global_batch_size * peft.config.model.seq_length);
  const double expected = cross_entropy(logits, targets, rows);
  EXPECT_NEAR(peft.step(0), expected, 1e-5);
  EXPECT_GT(std::abs(cross_entropy(other, targets, rows) - expected), 1e-2);
}

struct ExportCase {
  const char* base;
  std::vector<std::string> target;
  const char* tensor;  ///< one that the folder has
};

// The base with the exported adapter has the bits of the base with the checkpoint.
TEST(LoraExpertsPeft, ExportAndImport) {
  const std::string model = "base_model.model.model.layers.1.";
  for (const ExportCase& c :
       {ExportCase{"mixtral", {"all-linear"}, "block_sparse_moe.experts.4.w3.lora_B.weight"},
        {"olmoe", {"up", "gate", "down"}, "mlp.experts.3.gate_proj.lora_A.weight"},
        {"mixtral", {"gate", "down"}, "mlp.experts.base_layer.lora_A.weight"},
        {"olmoe", {"q", "up"}, "mlp.experts.lora_B.weight"},
        {"qwen2_moe", {"all-linear"}, "mlp.experts.base_layer.lora_B.weight"},
        {"qwen2_moe", {"gate"}, "mlp.shared_expert.gate_proj.lora_A.weight"},
        {"qwen3_moe", {"q", "v"}, "self_attn.q_proj.lora_A.weight"}}) {
    SCOPED_TRACE(std::string(c.base) + " " + c.target[0]);
    PeftFixture fixture = kPeftExperts;
    fixture.base = kFixtures / "hugging_face" / c.base;
    config::AdapterConfig adapter;
    adapter.type = config::AdapterType::lora;
    adapter.rank = 8;
    adapter.alpha = 12;
    adapter.use_rslora = c.target.size() == 2;
    adapter.dropout = 0.25;
    adapter.target = c.target;
    const SafetensorsReader expected((fixture.folder / "expected.safetensors").string());
    TrainingRun run(peft_config(fixture, expected, adapter));
    run.step(1), run.step(2);  // B is not zero
    const TemporaryFolder folder;
    const auto base = [&] { return convert::open_weights(fixture.base); };
    const fs::path saved = save(run, folder, checkpoint::Base{fixture.base.string(), base()->hash()});
    const fs::path peft = folder / "peft";
    fs::create_directory(peft);
    convert::write_peft(checkpoint::Reader(saved), peft);
    const bool experts = std::string(c.base) != "qwen3_moe";  // for which PEFT refuses dropout
    EXPECT_EQ(parse_json(read_file((peft / "adapter_config.json").string())).at("lora_dropout"),
              experts ? 0.0 : 0.25);
    EXPECT_NO_THROW(SafetensorsReader((peft / "adapter_model.safetensors").string()).at(model + c.tensor));
    const auto ours = convert::with_adapters(base(), run.config().model, {saved.string()}),
               theirs = convert::with_adapters(base(), run.config().model, {peft.string()}), plain = base();
    size_t adapted = 0;
    for (const std::string& name : plain->names()) {
      const checkpoint::TensorInfo info = *plain->info(name);
      const auto values = [&](const checkpoint::WeightSource& source) {
        std::vector<float> all(static_cast<size_t>(info.rows() * info.cols()));
        source.read(name, checkpoint::Block::rows(0, info.rows(), info.cols()), all.data());
        return all;
      };
      EXPECT_EQ(values(*ours), values(*theirs)) << name;
      adapted += values(*ours) != values(*plain) ? 1 : 0;
    }
    EXPECT_GE(adapted, static_cast<size_t>(run.config().model.num_layers));
  }
}

// PEFT for transformers 5 has no adapters of Qwen3-MoE's experts together with adapters of its dense layers.
TEST(LoraExpertsPeft, ExportOfDenseLayersIsRefused) {
  PeftFixture fixture = kPeftExperts;
  fixture.base = kFixtures / "hugging_face/qwen3_moe";
  config::AdapterConfig adapter;
  adapter.type = config::AdapterType::lora;
  adapter.rank = 8;
  adapter.target = {"down"};
  const SafetensorsReader expected((fixture.folder / "expected.safetensors").string());
  TrainingRun run(peft_config(fixture, expected, adapter));
  const TemporaryFolder folder;
  const fs::path saved = save(run, folder, checkpoint::Base{fixture.base.string(), 1});
  TE_EXPECT_CONTAINS(
      user_error_of([&] { convert::write_peft(checkpoint::Reader(saved), folder.path()); }),
      "PEFT has no adapters of experts together with adapters of the MLP in layer 0; run te-convert "
      "merge instead");
}

}  // namespace
}  // namespace te::testing
