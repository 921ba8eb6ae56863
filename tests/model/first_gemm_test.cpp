// The first wgrad GEMM of a step overwrites the gradient instead of adding to zeros. The results are equal, and no code
// reads values of an earlier step.
#include "model/tiny_model.h"
#include "testing/testing.h"

namespace te {
namespace {

using config::Config;
using config::Family;
using testing::tiny_config;
using testing::TinyModel;

/// All gradients, including the padding between them, of a step with one microbatch per seed, after their memory was
/// filled with NaN. `zeroed`: the gradients are zeroed before the step, and all GEMMs add.
std::vector<float> gradients(const Config& config, const std::vector<uint64_t>& seeds, bool zeroed = false) {
  TinyModel tiny(config);
  const Context& context = tiny.context();
  parameters::ParameterStore& store = tiny.model().parameters();
  context.fill_bytes(store.grads, 0xff);
  tiny.optimizer().begin_step(context);
  if (zeroed) {
    context.zero(store.grads);
    for (parameters::Parameter& parameter : store.parameters()) parameter.grad_stale = false;
  }
  for (const uint64_t seed : seeds) {
    tiny.set_batch(seed);
    tiny.add_microbatch();
  }
  std::vector<float> values(static_cast<size_t>(store.flat_size()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = store.grads.dtype == DType::f32 ? store.grads.as<float>()[i]
                                                : to_float(store.grads.as<bfloat16>()[i]);
  }
  return values;
}

Config bf16_config(Family family, config::Fp8Mode fp8) {
  Config config = tiny_config(family);
  config.precision.dtype = config::ComputeDType::bf16;
  config.precision.fp8 = fp8;
  return config;
}

std::vector<Config> configs() {
  std::vector<Config> all = {tiny_config(Family::gpt), tiny_config(Family::llama)};  // tied, not tied
  all[0].name = "gpt", all[1].name = "llama";
  // Sizes that are not multiples of the alignment, so that there is padding after the weights.
  all.push_back(tiny_config(Family::llama));
  all.back().name = "ragged";
  all.back().model.hidden_size = 20;
  all.back().model.ffn_hidden_size = 44;
  all.back().model.num_attention_heads = 2;
  all.back().model.tie_word_embeddings = all.back().model.add_qkv_bias = true;
  // 160 sequences of 64 tokens: the output layer's GEMM runs in two chunks.
  all.push_back(tiny_config(Family::gpt));
  all.back().name = "two chunks";
  all.back().model.num_layers = 1;
  all.back().model.seq_length = all.back().model.max_position_embeddings = 64;
  all.back().training.micro_batch_size = all.back().training.global_batch_size = 160;
  all.push_back(bf16_config(Family::gpt, config::Fp8Mode::off));
  all.back().name = "BF16 gradients";
  all.back().optimizer.main_grad_dtype = config::GradDType::bf16;
  all.push_back(bf16_config(Family::llama, config::Fp8Mode::hybrid));
  all.back().name = "FP8";
  all.back().precision.fp8_output_layer = true;
  all.back().training.recompute = config::Recompute::full;
  return all;
}

TEST(FirstGemm, EqualsAddingToZeros) {
  for (const Config& config : configs()) {
    const std::vector<float> expected = gradients(config, {1, 2}, true), actual = gradients(config, {1, 2});
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < actual.size(); ++i)
      ASSERT_EQ(actual[i], expected[i]) << config.name << ", element " << i;
  }
}

TEST(FirstGemm, LaterGemmsAdd) {
  for (const Config& config : configs()) {
    std::vector<float> sum = gradients(config, {1});
    const std::vector<float> second = gradients(config, {2});
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += second[i];
    // The summation order differs; BF16 gradients are also rounded, to 2^-9, after each GEMM.
    const double bound = config.optimizer.main_grad_dtype == config::GradDType::bf16 ? 1e-2 : 1e-6;
    EXPECT_LT(testing::relative_error(gradients(config, {1, 2}), sum), bound) << config.name;
  }
}

// Weights of linear layers have a first GEMM. So does the word embedding if it is tied to the output layer; otherwise
// its gradient is only added to.
TEST(FirstGemm, OnlyWeightsOfGemmsAreMarkedStale) {
  for (const Family family : {Family::gpt, Family::llama}) {
    TinyModel tiny(tiny_config(family));
    tiny.optimizer().begin_step(tiny.context());
    for (const parameters::Parameter& parameter : tiny.model().parameters().parameters()) {
      const bool words = parameter.name == "embedding.word_embeddings.weight";
      const bool weight = parameter.name.ends_with(".weight") && parameter.shape.rank() == 2;
      const bool expected =
          words ? family == Family::gpt : weight && !parameter.name.starts_with("embedding");
      EXPECT_EQ(parameter.grad_stale, expected) << parameter.name;
    }
  }
}

TEST(FirstGemm, RefusesAStepWithoutIt) {
  TinyModel tiny(tiny_config(Family::llama));
  tiny.train_step(1e-3f);
  tiny.optimizer().begin_step(tiny.context());
  EXPECT_THROW(tiny.optimizer().reducer().finish(tiny.context()), InternalError);
  comm::GradientReducer& reducer = tiny.optimizer().reducer();
  const parameters::Bucket embedding =
      tiny.model().parameters().ranges(0, 1).front();  // no GEMM writes its gradient
  reducer.ready(tiny.context(), embedding.begin, embedding.end);
  EXPECT_THROW(reducer.ready(tiny.context(), embedding.end, tiny.model().parameters().flat_size()),
               InternalError);
}

}  // namespace
}  // namespace te
