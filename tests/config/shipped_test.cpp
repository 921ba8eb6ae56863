// The configs in configs/: all load, and each pair of _bf16 and _fp8 differs only in the FP8 flag.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <tuple>

#include "config_testing.h"

namespace te::config {
namespace {

const std::filesystem::path kFolder = std::filesystem::path(TE_SOURCE_DIR) / "configs";

std::vector<std::string> lines(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> result;
  for (std::string line; std::getline(stream, line);) result.push_back(line);
  return result;
}

TEST(Shipped, EveryConfigLoadsAndIsValidOnAGpu) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    if (entry.is_directory()) continue;  // experiments/, which tests/apps loads
    ASSERT_EQ(entry.path().extension(), ".yaml") << entry.path();
    const Config config = load_config(entry.path().string());
    EXPECT_EQ(config.name, entry.path().stem().string());
    EXPECT_EQ(config.logging.directory, "runs/" + config.name);
    validate_for_device(config, true);
    names.insert(config.name);
  }
  for (const char* family :
       {"quickstart", "gpt2_124m", "llama_1b", "llama7b", "llama3.1_8b", "llama2_13b", "llama3.1_70b"}) {
    EXPECT_TRUE(names.contains(std::string(family) + "_bf16")) << family;
    EXPECT_TRUE(names.contains(std::string(family) + "_fp8")) << family;
  }
}

TEST(Shipped, PairsDifferOnlyInTheFp8Flag) {
  int pairs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    const std::string stem = entry.path().stem().string();
    if (!stem.ends_with("_bf16")) continue;
    ++pairs;
    const std::string base = stem.substr(0, stem.size() - 5);
    Config bf16 = load_config(entry.path().string());
    Config fp8 = load_config((kFolder / (base + "_fp8.yaml")).string());
    EXPECT_EQ(bf16.precision.fp8, Fp8Mode::off);
    EXPECT_EQ(fp8.precision.fp8, Fp8Mode::hybrid);
    // The run folder depends on the file's name; everything else must be equal.
    EXPECT_EQ(fp8.logging.directory, "runs/" + base + "_fp8");
    EXPECT_EQ(fp8.checkpoint.directory, "runs/" + base + "_fp8/checkpoints");
    fp8.precision.fp8 = Fp8Mode::off;
    fp8.logging.directory = bf16.logging.directory;
    fp8.checkpoint.directory = bf16.checkpoint.directory;
    EXPECT_EQ(to_yaml(fp8), to_yaml(bf16)) << base;
  }
  EXPECT_EQ(pairs, 7);
}

/// The _fp8 file extends the _bf16 file and sets one key, so a change of the _bf16 file applies to both.
TEST(Shipped, Fp8FilesAddOneKey) {
  for (const char* base :
       {"quickstart", "gpt2_124m", "llama_1b", "llama7b", "llama3.1_8b", "llama2_13b", "llama3.1_70b"}) {
    std::ifstream file(kFolder / (std::string(base) + "_fp8.yaml"));
    std::ostringstream text;
    text << file.rdbuf();
    std::vector<std::string> content;
    for (const std::string& line : lines(text.str())) {
      if (!line.empty() && line[0] != '#') content.push_back(line);
    }
    EXPECT_EQ(content, (std::vector<std::string>{"extends: " + std::string(base) + "_bf16.yaml",
                                                 "precision:", "  fp8: hybrid"}));
  }
}

TEST(Shipped, ShapesArePublishedOnes) {
  const Config gpt2 = load_config((kFolder / "gpt2_124m_fp8.yaml").string());
  EXPECT_EQ(gpt2.model.padded_vocab_size(), 50304);
  EXPECT_EQ(gpt2.model.ffn_hidden_size, 3072);
  EXPECT_EQ(gpt2.model.kv_channels, 64);
  EXPECT_TRUE(gpt2.model.tie_word_embeddings);
  const Config llama = load_config((kFolder / "llama7b_fp8.yaml").string());
  const ModelConfig& m = llama.model;
  // Llama 2 7B has 6,738,415,616 parameters: embedding and output layer, four attention matrices, three MLP matrices,
  // norms.
  const int64_t layer =
      m.hidden_size * (m.qkv_width() + m.attention_width() + m.fc1_width() + m.ffn_hidden_size) +
      2 * m.hidden_size;
  EXPECT_EQ(2 * m.padded_vocab_size() * m.hidden_size + m.num_layers * layer + m.hidden_size, 6738415616);
  // The others use presets, whose parameters presets_test counts; the Llama 3 configs use the Llama 3.1 presets.
  for (const auto& [name, vocabulary, sequence, tokens] :
       {std::tuple("llama3.1_8b_fp8", 128256, 8192, 1 << 20),
        std::tuple("llama2_13b_fp8", 32000, 4096, 1 << 19),
        std::tuple("llama3.1_70b_fp8", 128256, 8192, 1 << 20)}) {
    const Config config = load_config((kFolder / (std::string(name) + ".yaml")).string());
    EXPECT_EQ(config.model.vocab_size, vocabulary) << name;
    EXPECT_EQ(config.model.seq_length, sequence) << name;
    EXPECT_EQ(config.training.global_batch_size * config.model.seq_length, tokens) << name;
    EXPECT_EQ(config.model.rope_scaling.kind == RopeScalingKind::llama3, vocabulary == 128256) << name;
  }
}

}  // namespace
}  // namespace te::config
