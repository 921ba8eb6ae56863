// Bases of adapters that a Hugging Face folder stores in FP8: the run holds the stored codes where its recipe has the
// same scales.
#include <cmath>

#include "fp8_base.h"
#include "te_train_testing.h"

namespace te::testing {
namespace {

using namespace fp8_base;  // NOLINT(google-build-using-namespace)
using parameters::Parameter;

/// The parts of a linear layer's weight, in order.
std::vector<std::string> modules_of(ParameterRole role) {
  switch (role) {
    case ParameterRole::linear_qkv:
      return {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"};
    case ParameterRole::linear_proj:
      return {"self_attn.o_proj"};
    case ParameterRole::linear_fc1:
      return {"mlp.gate_proj", "mlp.up_proj"};
    default:
      return {"mlp.down_proj"};
  }
}

TEST(LoraBase, HoldsTheCodesOfTheFolder) {
  for (const StoredBase& form : kStoredBases) {
    const TemporaryFolder folder;
    const StoredTensors tensors = fp8_llama(form.scales, form.equal_scales);
    write_model(folder.path(), tensors, form.scales);
    const convert::ForeignModel base = convert::open_hugging_face(folder.path());
    TrainingRun run(config_on(folder.path(), form.recipe));
    load(run, base);
    int held = 0;
    for (const Parameter& parameter : run.parameters()) {
      if (!parameter.dropped) continue;
      std::string codes;
      for (const std::string& module : modules_of(parameter.id.role))
        codes += tensors.at("model.layers.0." + module + ".weight").bytes;
      held += bytes_at(parameter.rowwise->values) == codes ? 1 : 0;
      if (parameter.id.role != ParameterRole::linear_fc2) continue;
      const size_t i = form.scales == Scales::matrix ? 0 : 1;
      const std::string& scales =
          tensors.at(std::string("model.layers.0.mlp.down_proj.weight") + scale_suffix(form.scales)).bytes;
      float stored = 0, own = parameter.rowwise->scales.as<float>()[form.held > 0 ? i : 0];
      std::memcpy(&stored, scales.data() + i * sizeof(stored), sizeof(stored));
      EXPECT_EQ(own == stored, form.held > 0) << form.name;
    }
    EXPECT_EQ(held, form.held) << form.name;
    EXPECT_TRUE(std::isfinite(run.step(1))) << form.name;
  }
}

// Ranks of tensor parallelism read the codes and scales of their rows or columns, if these are whole blocks.
TEST(LoraBase, RanksReadTheirPartOfTheCodes) {
  using parameters::ParameterShard;
  const TemporaryFolder folder;
  write_model(folder.path(), fp8_llama(Scales::deepseek, false), Scales::deepseek);
  const convert::ForeignModel base = convert::open_hugging_face(folder.path());
  const std::string fc1 = LinearId{0, LinearKind::fc1}.parameter(ParameterPart::weight).name(),
                    fc2 = LinearId{0, LinearKind::fc2}.parameter(ParameterPart::weight).name();
  const auto rows = base.read_codes(fc1, ParameterShard::full({2 * kFfn, kHidden})),
             cols = base.read_codes(fc2, ParameterShard::full({kHidden, kFfn}));
  for (int rank = 0; rank < 2; ++rank) {
    const auto half =
        base.read_codes(fc1, ParameterShard::of_rows({2 * kFfn, kHidden}, {kFfn, kFfn}, rank, 2));
    for (int64_t row = 0; row < kFfn; ++row) {
      const int64_t full = row % 128 + (row / 128 * 2 + rank) * 128;  // half of gate, then half of up
      EXPECT_EQ(half->scales[row], rows->scales[full]);
      for (int64_t col = 0; col < kHidden; ++col)
        ASSERT_EQ(half->codes[row * kHidden + col], rows->codes[full * kHidden + col]) << row << " " << col;
    }
    const auto part = base.read_codes(fc2, ParameterShard::of_columns({kHidden, kFfn}, rank, 2));
    for (int64_t row = 0; row < kHidden; ++row) {
      EXPECT_EQ(part->scales[row], cols->scales[row * 2 + rank]);
      for (int64_t col = 0; col < kFfn / 2; ++col)
        ASSERT_EQ(part->codes[row * kFfn / 2 + col], cols->codes[row * kFfn + rank * kFfn / 2 + col]);
    }
    EXPECT_FALSE(base.read_codes(fc2, ParameterShard::of_columns({kHidden, kFfn}, rank, 4)));
  }
}

// A columnwise layout that is kept equals the one that passes make from the rowwise layout.
TEST(LoraBase, StoredCodesGiveTheSameBitsInBothLayouts) {
  for (const StoredBase& form : kStoredBases) {
    const TemporaryFolder folder;
    write_model(folder.path(), fp8_llama(form.scales, form.equal_scales), form.scales);
    const convert::ForeignModel base = convert::open_hugging_face(folder.path());
    std::vector<float> losses;
    for (const auto kept : {config::Fp8KeptWeights::rowwise, config::Fp8KeptWeights::both}) {
      config::Config config = config_on(folder.path(), form.recipe);
      config.precision.fp8_keep_weights = kept;
      TrainingRun run(config);
      load(run, base);
      run.step(1), run.step(2);
      losses.push_back(run.step(3));
    }
    EXPECT_EQ(losses[0], losses[1]) << form.name;
  }
}

// The ranks agree on the scales of a base while they load it. One that cannot read its part must not leave the other
// waiting.
TEST(LoraBase, DamageThatOneRankSeesEndsTheRun) {
  TrainFolder folder;
  folder.use_ranks(2);
  const fs::path base = folder / "base";
  fs::create_directory(base);
  StoredTensors tensors = fp8_llama(Scales::deepseek, false);
  tensors.at("model.layers.0.mlp.gate_proj.weight").bytes.back() =
      '\x7f';  // NaN in the rows of the second rank
  write_model(base, tensors, Scales::deepseek);
  config::Config config = config_on(base, Fp8Recipe::delayed);
  config.parallel.tensor = 2;
  config.logging.directory = folder / "run";
  config.checkpoint.directory = folder / "run/checkpoints";
  write_file(folder / "damaged.yaml", config::to_yaml(config));
  const Result result = folder.run_raw("--config " + (folder / "damaged.yaml"));
  EXPECT_EQ(result.code, 2) << result.error;
  TE_EXPECT_CONTAINS(result.error, "has infinite or NaN values");
}

}  // namespace
}  // namespace te::testing
