// Output of the key table: YAML that reads back, the names of enums, docs/reference/configuration.md.
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>

#include <fmt/format.h>

#include "config_testing.h"

namespace te::config {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(ToYaml, RoundTripsEveryKindOfValue) {
  Config config =
      small({"optimizer.lr=0.1", "optimizer.min_lr=1e-30", "training.seed=18446744073709551615",
             "optimizer.eps=1.2345678901234567e-8", "precision.fp8=e4m3", "optimizer.decay=wsd",
             "training.device=cpu", "logging.tensorboard=false", "model.tie_word_embeddings=true"});
  config.data = {.train = {{1.0 / 3.0, "a b: \"c\" #d\\e"}, {2.0, "0.5"}},
                 .valid = {{"valid", {{1.0, "\xc3\xa4/x\ty"}}}}};
  config.logging.generate_prompts = {"a: \"b\"\n{c}", "- d, e", ""};
  config.logging.directory = "null";
  config.checkpoint.directory = " ~ ";
  const std::string text = to_yaml(config);
  const Config again = parse_config(text, "dir/small.yaml");
  EXPECT_EQ(to_yaml(again), text);
  EXPECT_EQ(again.data.train, config.data.train);
  EXPECT_EQ(again.data.valid, config.data.valid);
  EXPECT_EQ(again.logging.generate_prompts, config.logging.generate_prompts);
  EXPECT_EQ(again.optimizer.lr, 0.1);
  EXPECT_EQ(again.optimizer.min_lr, 1e-30);
  EXPECT_EQ(again.optimizer.eps, 1.2345678901234567e-8);
  EXPECT_EQ(again.training.seed, 18446744073709551615ull);
  EXPECT_EQ(again.logging.directory, "null");
  EXPECT_EQ(again.checkpoint.directory, " ~ ");
  EXPECT_EQ(again.precision.fp8, Fp8Mode::e4m3);
  EXPECT_TRUE(again.model.tie_word_embeddings);
  EXPECT_FALSE(again.logging.tensorboard);
}

TEST(ToYaml, ShowsTheEffectiveValues) {
  const std::string text = to_yaml(small({"optimizer.eps=1e-8"}));
  EXPECT_NE(text.find("  kv_channels: 16\n"), std::string::npos) << text;
  EXPECT_NE(text.find("  eps: 1.0e-08\n"), std::string::npos) << text;  // YAML 1.1 needs the decimal point
  EXPECT_NE(text.find("  rope_theta: 10000.0\n"), std::string::npos) << text;
  EXPECT_NE(text.find("  directory: \"runs/small/checkpoints\"\n"), std::string::npos) << text;
  EXPECT_NE(text.find("  fp8: off\n"), std::string::npos) << text;
}

template <class Enum>
void expect_names(std::initializer_list<const char*> names) {
  int index = 0;
  for (const char* name : names) {
    const auto value = static_cast<Enum>(index++);
    EXPECT_EQ(to_string(value), name);
    Enum read{};
    EXPECT_TRUE(from_string(name, read));
    EXPECT_EQ(read, value);
  }
  Enum untouched = static_cast<Enum>(index - 1);
  EXPECT_FALSE(from_string("nonsense", untouched));
  EXPECT_FALSE(from_string("", untouched));
  EXPECT_EQ(untouched, static_cast<Enum>(index - 1));
}

TEST(Enums, NamesAndValuesAgree) {
  expect_names<Family>({"gpt", "llama"});
  expect_names<ComputeDType>({"bf16", "fp32", "fp16"});
  expect_names<GradDType>({"bf16", "fp32"});
  expect_names<Fp8Mode>({"off", "e4m3", "hybrid"});
  expect_names<Fp8Recipe>({"delayed", "tensorwise"});
  expect_names<AmaxAlgo>({"max", "most_recent"});
  expect_names<Recompute>({"none", "selective", "full"});
  expect_names<GuardAction>({"warn", "bf16", "rollback"});
  expect_names<DeviceChoice>({"auto", "cpu", "cuda"});
  expect_names<LrDecay>({"cosine", "linear", "constant", "wsd"});
  expect_names<RopeScalingKind>({"none", "linear", "llama3", "yarn"});
  expect_names<PositionEmbedding>({"auto", "learned", "rope"});
  expect_names<ActivationKind>({"auto", "swiglu", "gelu", "gelu_exact", "relu", "silu", "geglu", "relu2"});
  expect_names<QkNorm>({"none", "head", "projection", "head_no_gain"});
  expect_names<NormPlacement>({"pre", "post", "both"});
  expect_names<OptimizerName>({"adamw", "muon"});
  expect_names<MomentDType>({"fp32", "bf16", "fp8"});
  expect_names<Offload>({"none", "moments", "state"});
  expect_names<DataFormat>({"pretrain", "instruct"});
  expect_names<Overlong>({"truncate", "drop"});
  expect_names<Shard>({"optimizer", "gradients", "parameters"});
  expect_names<Transport>({"auto", "nccl", "copy"});
  EXPECT_EQ(to_string(LrDecay::wsd), "wsd");
  EXPECT_EQ(to_string(DeviceChoice::automatic), "auto");
  EXPECT_EQ(to_string(Fp8Mode::hybrid), "hybrid");
}

TEST(Reference, EveryKeyOfTheYamlIsDescribed) {
  const std::string markdown = config_reference_markdown();
  const std::string help = describe_keys();
  std::istringstream yaml(to_yaml(small()));
  std::string line, section;
  int keys = 0;
  while (std::getline(yaml, line)) {
    const std::string name =
        line.substr(line.find_first_not_of(' '), line.find(':') - line.find_first_not_of(' '));
    if (line[0] != ' ') {
      section = name;
      EXPECT_NE(markdown.find("### " + section + "\n"), std::string::npos);
      continue;
    }
    ++keys;
    EXPECT_NE(markdown.find(fmt::format("| `{}.{}` |", section, name)), std::string::npos) << name;
    EXPECT_NE(help.find(fmt::format("  {}.{} ", section, name)), std::string::npos) << name;
  }
  EXPECT_EQ(keys, 178);
}

TEST(Reference, KeysAreDescribedInPlainText) {
  std::istringstream help(describe_keys());
  std::map<std::string, std::string> lines;
  for (std::string line; std::getline(help, line);) lines[line.substr(2, line.find(' ', 2) - 2)] = line;
  const auto has = [&](const std::string& key, const std::string& part) {
    EXPECT_NE(lines[key].find(part), std::string::npos) << part << "\n" << lines[key];
  };
  has("model.num_layers", "integer: 1 to ");
  has("optimizer.lr", "number: above 0 [0.0003]");
  has("logging.tensorboard", "boolean: true, false [true]");
  has("precision.fp8", "name: off, e4m3, hybrid [off]");
  has("data.train", "list");
  has("model.kv_channels", "(docs/reference/dtypes.md)");
  for (const auto& [key, line] : lines)
    for (const char* mark : {"`", "](", ".md#"}) EXPECT_EQ(line.find(mark), std::string::npos) << line;
}

// Longer explanations belong on the pages that the meanings link to.
TEST(Reference, MeaningsHaveAtMost25Words) {
  int rows = 0;
  std::istringstream markdown(config_reference_markdown());
  for (std::string line; std::getline(markdown, line);) {
    if (!line.starts_with("| `")) continue;
    ++rows;
    std::istringstream words(line.substr(line.rfind(" | ", line.size() - 3) + 3));
    const auto count =
        std::distance(std::istream_iterator<std::string>(words), {}) - 1;  // the last one is the bar
    EXPECT_LE(count, 25) << line;
  }
  EXPECT_EQ(rows, 178);
}

/// docs/reference/configuration.md contains the reference between two markers. TE_UPDATE_DOCS=1 rewrites it.
TEST(Reference, DocumentIsUpToDate) {
  const std::string path = std::string(TE_SOURCE_DIR) + "/docs/reference/configuration.md";
  const std::string begin = "<!-- begin: generated from src/config/key_rows_*.cpp -->\n";
  const std::string end = "<!-- end: generated -->\n";
  std::string text = read_file(path);
  const size_t from = text.find(begin);
  const size_t to = text.find(end);
  ASSERT_TRUE(from != std::string::npos && to != std::string::npos && from < to)
      << "markers missing in " << path;
  const size_t start = from + begin.size();
  const std::string expected = "\n" + config_reference_markdown() + "\n";
  if (std::getenv("TE_UPDATE_DOCS")) {
    text.replace(start, to - start, expected);
    std::ofstream(path) << text;
    return;
  }
  EXPECT_EQ(text.substr(start, to - start), expected)
      << "docs/reference/configuration.md differs from the table of keys; "
         "run this test with TE_UPDATE_DOCS=1 to rewrite it";
}

// Defaults that depend on other keys count as defaults, too.
TEST(KeysThatWereSet, AreRequiredKeysAndKeysThatDifferFromTheirDefault) {
  const auto names = [](const Config& config) {
    std::string text;
    for (const SetKey& key : explicit_keys(config))
      text += std::string(key.section) + "." + std::string(key.name) + "=" + key.value + " ";
    return text;
  };
  const std::string plain = names(small());
  EXPECT_NE(plain.find("model.num_layers="), std::string::npos) << plain;
  EXPECT_EQ(names(small({"logging.directory=runs/small", "logging.every=1", "optimizer.clip_grad=1"})),
            plain);
  for (const char* part : {"kv_channels", "decay_steps", "min_lr", "directory", "logging", "checkpoint"})
    EXPECT_EQ(plain.find(part), std::string::npos) << part << " in " << plain;
  const std::string more = names(small({"logging.directory=elsewhere", "precision.fp8=hybrid",
                                        "optimizer.clip_grad=0.5", "optimizer.decay_steps=17"}));
  EXPECT_NE(more.find("precision.fp8=hybrid "), std::string::npos) << more;
  for (const char* part :
       {"optimizer.clip_grad=0.5 ", "optimizer.decay_steps=17 ", "logging.directory=\"elsewhere\" "})
    EXPECT_NE(more.find(part), std::string::npos) << part << " in " << more;
  EXPECT_EQ(names(small({"optimizer.lr=1e-5"})).find("min_lr"), std::string::npos);
  EXPECT_NE(names(small({"optimizer.lr=1e-3", "optimizer.min_lr=3e-5"})).find("optimizer.min_lr=3.0e-05 "),
            std::string::npos);
  // Not set, although its value has changed: it follows another key.
  EXPECT_EQ(more.find("checkpoint.directory"), std::string::npos) << more;
}

}  // namespace
}  // namespace te::config
