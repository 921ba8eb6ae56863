// Presets have the published numbers of parameters. Synonyms refer to existing keys.
#include "config/presets.h"

#include <algorithm>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <stdexcept>

#include "config/provenance.h"
#include "config_testing.h"

namespace te::config {
namespace {

Config preset(const std::string& name) {
  return load_config({"preset:" + name},
                     {"training.micro_batch_size=1", "training.global_batch_size=1", "training.train_steps=1",
                      "data.synthetic=true"},
                     nullptr);
}

TEST(Presets, HaveThePublishedNumbersOfParameters) {
  // Parameter counts of transformers; for GPT-2 with the output layer tied to the embedding.
  const std::vector<std::pair<std::string, int64_t>> published = {
      {"gpt2", 124439808},           {"gpt2_medium", 354823168},     {"gpt2_large", 774030080},
      {"gpt2_xl", 1557611200},       {"tinyllama", 1100048384},      {"llama2_7b", 6738415616},
      {"llama2_13b", 13015864320},   {"llama2_70b", 68976648192},    {"llama3_8b", 8030261248},
      {"llama3_70b", 70553706496},   {"llama3.1_8b", 8030261248},    {"llama3.1_70b", 70553706496},
      {"llama3.2_1b", 1235814400},   {"llama3.2_3b", 3212749824},    {"mistral_7b", 7248023552},
      {"mixtral_8x7b", 46702792704}, {"qwen3_30b_a3b", 30532122624}, {"olmoe_1b_7b", 6919161856},
      {"moe_40m_100m", 105585024},
  };
  for (const auto& [name, count] : published) {
    const Config config = preset(name);
    EXPECT_EQ(parameter_count(config.model), count) << name;
    EXPECT_EQ(config.name, name);
    EXPECT_EQ(config.logging.directory, "runs/" + name);
    validate_for_device(config, true);
    // Every preset is in this list and, without experts, is valid with FP8.
    EXPECT_NE(describe_presets().find("\n" + name + " "), std::string::npos) << name;
    if (config.model.num_moe_experts > 0) continue;
    Config fp8 = config;
    fp8.precision.fp8 = Fp8Mode::hybrid;
    validate(fp8);
  }
  const std::string list = describe_presets();
  EXPECT_EQ(static_cast<size_t>(std::ranges::count(list, '\n')), published.size() + 1);
}

TEST(Presets, ActiveParametersOfMixturesOfExperts) {
  EXPECT_NEAR(static_cast<double>(parameter_count(preset("mixtral_8x7b").model, true)), 12.9e9, 0.05e9);
  EXPECT_NEAR(static_cast<double>(parameter_count(preset("qwen3_30b_a3b").model, true)), 3.35e9, 0.05e9);
  EXPECT_NEAR(static_cast<double>(parameter_count(preset("olmoe_1b_7b").model, true)), 1.28e9, 0.05e9);
  EXPECT_NEAR(static_cast<double>(parameter_count(preset("moe_40m_100m").model, true)), 40e6, 1.5e6);
}

TEST(Presets, RotaryEmbeddings) {
  EXPECT_EQ(preset("llama2_7b").model.rope_theta, 1e4);
  EXPECT_EQ(preset("llama3_8b").model.rope_theta, 5e5);
  EXPECT_EQ(preset("mistral_7b").model.rope_theta, 1e6);
  for (const char* name : {"llama3.1_8b", "llama3.1_70b"}) {
    EXPECT_EQ(preset(name).model.rope_scaling.kind, RopeScalingKind::llama3) << name;
    EXPECT_EQ(preset(name).model.rope_scaling.factor, 8.0) << name;
  }
  const RopeScaling scaling = preset("llama3.2_1b").model.rope_scaling;
  EXPECT_EQ(scaling.kind, RopeScalingKind::llama3);
  EXPECT_EQ(scaling.factor, 32.0);
  EXPECT_EQ(scaling.low_freq_factor, 1.0);
  EXPECT_EQ(scaling.high_freq_factor, 4.0);
  EXPECT_EQ(scaling.original_max_position_embeddings, 8192);
}

TEST(Synonyms, NameExistingKeysAndHideNone) {
  std::ifstream file(TE_SOURCE_DIR "/src/config/synonyms.cpp");
  std::ostringstream text;
  text << file.rdbuf();
  const std::string source = text.str();
  const std::string keys = describe_keys();
  const std::regex pair("\\{\"([^\"]+)\", \"([^\"]+)\"\\}");
  int pairs = 0;
  std::set<std::string> seen;
  for (std::sregex_iterator it(source.begin(), source.end(), pair), end; it != end; ++it, ++pairs) {
    const std::string theirs = (*it)[1], ours = (*it)[2];
    EXPECT_TRUE(seen.insert(theirs).second) << theirs;
    EXPECT_TRUE(ours == "extends" || keys.find("  " + ours + " ") != std::string::npos) << ours;
    EXPECT_EQ(keys.find("." + theirs + " "), std::string::npos) << theirs << " is the name of a key";
    EXPECT_EQ(override_complaint({theirs + "=1"}),
              "--set " + theirs + "=1: key '" + theirs + "' is unknown; did you mean '" + ours + "'?");
  }
  EXPECT_GT(pairs, 40);
  EXPECT_LE(pairs, 80);
}

TEST(KeyChoices, AreTheKeysAndTheirValues) {
  const std::string keys = describe_keys();
  const std::vector<KeyChoices> choices = key_choices();
  EXPECT_EQ(static_cast<size_t>(std::ranges::count(keys, '\n')), choices.size());
  const auto of = [&](const std::string& path) {
    for (const KeyChoices& key : choices)
      if (key.path == path) return key;
    throw std::runtime_error(path + " is missing");
  };
  EXPECT_EQ(of("precision.fp8").values, (std::vector<std::string>{"off", "e4m3", "hybrid"}));
  EXPECT_EQ(of("logging.tensorboard").values, (std::vector<std::string>{"true", "false"}));
  EXPECT_TRUE(of("data.train").is_path);
  EXPECT_TRUE(of("optimizer.lr").values.empty() && !of("optimizer.lr").is_path);
}

}  // namespace
}  // namespace te::config
