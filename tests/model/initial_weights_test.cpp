// Standard deviations of the initial weights.
#include <cmath>

#include "config/presets.h"
#include "model/tiny_model.h"
#include "testing/testing.h"

namespace te {
namespace {

using config::Config;
using config::Family;
using testing::tiny_config;
using testing::TinyModel;

double deviation(const std::vector<float>& values) {
  double sum = 0;
  for (float value : values) sum += static_cast<double>(value) * value;
  return std::sqrt(sum / static_cast<double>(values.size()));
}

Config untied(Family family) {
  Config config = tiny_config(family);
  config.model.tie_word_embeddings = false;
  config.model.init_method_std = 0.1;
  return config;
}

// The standard deviation of n normal values has a relative spread of 1 / sqrt(2n); the smallest tensor has 512 values.
constexpr double kSpread = 0.13;

TEST(InitialWeights, ProjectionsToTheResidualStreamAreScaledByDepth) {
  for (Family family : {Family::gpt, Family::llama}) {
    TinyModel tiny(untied(family));
    for (const parameters::Parameter& parameter : tiny.model().parameters().parameters()) {
      if (parameter.main.shape.rank() != 2) continue;
      const bool scaled = parameter.name.find("linear_proj") != std::string::npos ||
                          parameter.name.find("linear_fc2") != std::string::npos;
      const double expected = scaled ? 0.1 / std::sqrt(2.0 * 2) : 0.1;
      EXPECT_NEAR(deviation(tiny.read(parameter.main)) / expected, 1.0, kSpread) << parameter.name;
    }
  }
}

TEST(InitialWeights, ZeroInit) {
  Config config = untied(Family::llama);
  config.model.zero_init = {"linear_proj", "linear_fc2", "output_layer"};
  TinyModel tiny(config);
  for (const parameters::Parameter& parameter : tiny.model().parameters().parameters()) {
    const bool zero =
        config.model.starts_with_zeros(linear_kind_of(parameter.id.role).value_or(LinearKind::qkv));
    if (parameter.main.shape.rank() != 2) continue;
    EXPECT_EQ(deviation(tiny.read(parameter.main)) == 0.0, zero) << parameter.name;
  }
}

// Norms without gains have no parameters.
TEST(InitialWeights, NanoChatHasOnlyMatrices) {
  Config config = untied(Family::llama);
  testing::set_nanochat(config.model);
  TinyModel tiny(config);
  int64_t count = 0;
  for (const parameters::Parameter& parameter : tiny.model().parameters().parameters()) {
    EXPECT_EQ(parameter.main.shape.rank(), 2) << parameter.name;
    count += parameter.shape.numel();
  }
  const int64_t padding = config.model.padded_vocab_size() - config.model.vocab_size;
  EXPECT_EQ(config::parameter_count(config.model), count - 2 * padding * config.model.hidden_size);
}

TEST(InitialWeights, EmbeddingInitStd) {
  for (Family family : {Family::gpt, Family::llama}) {
    Config config = untied(family);
    TinyModel plain(config);
    config.model.embedding_init_method_std = 1.0;
    TinyModel tiny(config);
    int64_t embeddings = 0;
    for (const parameters::Parameter& parameter : tiny.model().parameters().parameters()) {
      const std::vector<float> values = tiny.read(parameter.main);
      if (parameter.name.starts_with("embedding.")) {
        EXPECT_NEAR(deviation(values), 1.0, kSpread) << parameter.name;
        EXPECT_FALSE(parameter.decay) << parameter.name;
        EXPECT_TRUE(plain.parameter(parameter.name).decay);
        ++embeddings;
      } else {
        EXPECT_EQ(values, plain.read(plain.parameter(parameter.name).main)) << parameter.name;
      }
    }
    EXPECT_EQ(embeddings, family == Family::gpt ? 2 : 1);
  }
}

}  // namespace
}  // namespace te
