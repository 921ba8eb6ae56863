// End-to-end tests of te-convert and of training from its output.
#include <sys/wait.h>

#include <algorithm>

#include "convert/convert_testing.h"
#include "core/json.h"

namespace te::testing {
namespace {

struct RunResult {
  int code = -1;
  std::string out, error;
};

class TeConvert : public ::testing::Test {
 protected:
  RunResult run(const std::string& program, const std::string& arguments) const {
    const fs::path out = folder_ / "out.txt", error = folder_ / "err.txt";
    const int status =
        std::system((program + " " + arguments + " >" + out.string() + " 2>" + error.string()).c_str());
    const RunResult result{WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_bytes(out), read_bytes(error)};
    fs::remove(out);
    fs::remove(error);
    return result;
  }
  RunResult convert(const std::string& arguments) const { return run(TE_CONVERT_EXECUTABLE, arguments); }
  std::string at(const std::string& name) const { return (folder_ / name).string(); }
  void expect_refused(const std::string& arguments, const std::string& part) const {
    const std::vector<std::string> before = entries(folder_.path());
    const RunResult result = convert(arguments);
    EXPECT_EQ(result.code, 2) << result.out;
    EXPECT_EQ(std::ranges::count(result.error, '\n'), 1) << result.error;
    EXPECT_NE(result.error.find(part), std::string::npos) << result.error << "lacks " << part;
    EXPECT_EQ(entries(folder_.path()), before);
  }

  TemporaryFolder folder_;
};

TEST_F(TeConvert, RoundTripWithTokenizerFiles) {
  const fs::path source = copy_fixture("llama3_tied_bf16", folder_ / "hf");
  write_bytes(source / "tokenizer.json", "{}");
  write_bytes(source / "README.md", "not kept");
  RunResult result = convert("import " + at("hf") + " --out " + at("te"));
  ASSERT_EQ(result.code, 0) << result.error;
  EXPECT_EQ(entries(folder_ / "te"),
            (std::vector<std::string>{"hugging_face", "latest", "model.yaml", "step_00000000"}));
  result = convert("export " + at("te") + " --out " + at("back"));
  ASSERT_EQ(result.code, 0) << result.error;
  EXPECT_EQ(result.error, "");
  EXPECT_EQ(entries(folder_ / "back"),
            (std::vector<std::string>{"config.json", "model.safetensors", "tokenizer.json"}));
  EXPECT_TRUE(read_bytes(folder_ / "back/model.safetensors") == read_bytes(source / "model.safetensors"));
  const auto config = parse_json(read_bytes(folder_ / "back/config.json"));
  EXPECT_EQ(config.at("bos_token_id"), 1);
  EXPECT_EQ(config.at("eos_token_id"), 2);
  EXPECT_EQ(config.at("torch_dtype"), "bfloat16");
  // Shards, another precision, a tokenizer from elsewhere.
  fs::create_directory(folder_ / "tokenizer");
  write_bytes(folder_ / "tokenizer/vocab.json", "{}");
  result = convert("export " + at("te/step_00000000") + " --out " + at("back") +
                   " --force --max-shard-size 30KB --dtype fp32 --tokenizer " + at("tokenizer"));
  ASSERT_EQ(result.code, 0) << result.error;
  EXPECT_FALSE(fs::exists(folder_ / "back/model.safetensors"));
  EXPECT_FALSE(fs::exists(folder_ / "back/tokenizer.json"));
  EXPECT_TRUE(fs::exists(folder_ / "back/vocab.json"));
  EXPECT_TRUE(fs::exists(folder_ / "back/model.safetensors.index.json"));
}

/// Runs te-train for a step on a converted model and exports the result.
class TunedModel : public TeConvert {
 protected:
  /// The learning rate of 1e-30 is so small that no weight changes. Logs and checkpoints go to the folder `run`.
  RunResult tune(const std::string& run, const std::string& init_from, const std::string& more = "",
                 int ranks = 1) const {
    write_bytes(folder_ / (run + ".yaml"),
                read_bytes(folder_ / "te/model.yaml") +
                    "precision: {dtype: fp32}\n"
                    "training: {micro_batch_size: 1, global_batch_size: 1, train_steps: 1, device: cpu}\n"
                    "optimizer: {lr: 1.0e-30, min_lr: 0.0, weight_decay: 0.0}\n"
                    "data: {synthetic: true}\nlogging: {directory: " +
                    at(run) + "}\ncheckpoint: {save_optimizer: false, init_from: " + at(init_from) + "}\n");
    const std::string start = ranks == 1 ? "" : fmt::format("{} {} ", TE_MPIRUN, ranks);
    return this->run(start + TE_TRAIN_EXECUTABLE, "--config " + at(run + ".yaml") + more);
  }
  /// Exports a run's checkpoint without --tokenizer, expects no warning, and returns the files of the folder.
  std::vector<std::string> exported(const std::string& run) const {
    fs::remove_all(folder_ / "back");
    const RunResult result = convert("export " + at(run + "/checkpoints") + " --out " + at("back"));
    EXPECT_EQ(result.code, 0) << result.error;
    EXPECT_EQ(result.error, "");
    return entries(folder_ / "back");
  }
};

TEST_F(TunedModel, KeepsItsTokenizerThroughAChainOfRuns) {
  const fs::path source = copy_fixture("qwen2", folder_ / "hf");
  write_bytes(source / "tokenizer.json", "{}");
  patch_config(source, {{"eos_token_id", 7}});
  ASSERT_EQ(convert("import " + at("hf") + " --out " + at("te")).code, 0);
  fs::remove_all(source);
  RunResult result = tune("first", "te");
  ASSERT_EQ(result.code, 0) << result.error;
  result = tune("second", "first/checkpoints/step_00000001");
  ASSERT_EQ(result.code, 0) << result.error;
  fs::remove_all(folder_ / "first");
  const std::vector<std::string> files = {"config.json", "model.safetensors", "tokenizer.json"};
  EXPECT_EQ(exported("second"), files);
  EXPECT_TRUE(tensors_of(folder_ / "back") == tensors_of(fixture("qwen2")));
  EXPECT_EQ(parse_json(read_bytes(folder_ / "back/config.json")).at("eos_token_id"), 7);
  // Resume into another directory after the original was removed; then resume from there.
  const std::string more =
      " --set training.train_steps=2 --set checkpoint.init_from= --set checkpoint.resume=";
  result = tune("third", "te", more + at("second/checkpoints"));
  ASSERT_EQ(result.code, 0) << result.error;
  EXPECT_EQ(exported("third"), files);
  result = tune("third", "te", more + "auto --set training.train_steps=3");
  ASSERT_EQ(result.code, 0) << result.error;
  EXPECT_EQ(exported("third"), files);
  ASSERT_EQ(convert("reshard " + at("third/checkpoints") + " --out " + at("resharded/checkpoints")).code, 0);
  EXPECT_EQ(exported("resharded"), files);
}

// A run starts from the weights of a Hugging Face folder, on one rank and on two tensor-parallel ranks.
TEST_F(TunedModel, StartsFromAHuggingFaceFolder) {
  const std::vector<std::pair<const char*, std::vector<int>>> fixtures = {
      {"qwen2", {1}}, {"gpt2", {1}}, {"gpt_neox", {1, 2}}, {"llama3_tied_bf16", {2}}};
  for (const auto& [name, sizes] : fixtures) {
    SCOPED_TRACE(name);
    fs::remove_all(folder_ / "hf");
    const fs::path source = copy_fixture(name, folder_ / "hf");
    write_bytes(source / "tokenizer.json", "{}");
    ASSERT_EQ(convert("import " + at("hf") + " --out " + at("te") + " --force").code, 0);
    for (const int ranks : sizes) {
      fs::remove_all(folder_ / "run");
      const RunResult result = tune("run", "hf", fmt::format(" --set parallel.tensor={}", ranks), ranks);
      ASSERT_EQ(result.code, 0) << result.error;
      EXPECT_TRUE(fs::exists(folder_ / "run/checkpoints/hugging_face/tokenizer.json"));
      const checkpoint::Reader saved(folder_ / "run/checkpoints");
      const convert::ForeignModel original = convert::open_hugging_face(source);
      for (const convert::ParameterLayout& parameter : original.parameters()) {
        const auto rows = checkpoint::Block::rows(0, parameter.rows(), parameter.cols());
        std::vector<float> expected(static_cast<size_t>(rows.count)), read(expected.size());
        original.read(parameter.name, rows, expected.data());
        saved.read(parameter.name, rows, read.data());
        EXPECT_EQ(read, expected) << parameter.name << " with " << ranks << " ranks";
      }
    }
  }
  fs::remove_all(folder_ / "run");
  const RunResult result = tune("run", "hf", " --set model.num_layers=1");
  EXPECT_EQ(result.code, 2);
  EXPECT_NE(result.error.find("belongs to a different model: model.num_layers is 2, but this config has 1"),
            std::string::npos)
      << result.error;
}

TEST_F(TunedModel, TheTokenizerOfTheConfigHasPriority) {
  const fs::path source = copy_fixture("qwen2", folder_ / "hf");
  write_bytes(source / "tokenizer.json", "{}");
  ASSERT_EQ(convert("import " + at("hf") + " --out " + at("te")).code, 0);
  write_bytes(folder_ / "encoder.json", R"({"a": 0, "b": 1, "<|endoftext|>": 2})");
  write_bytes(folder_ / "vocab.bpe", "#version: 0.2\n");
  const std::string tokenizer = " --set data.tokenizer=" + at("encoder.json");
  RunResult result = tune("run", "te", tokenizer);
  ASSERT_EQ(result.code, 0) << result.error;
  const std::vector<std::string> files = {"config.json", "merges.txt", "model.safetensors", "vocab.json"};
  EXPECT_EQ(exported("run"), files);
  // Without ids in config.json transformers would take the ids of its Qwen2 class.
  const auto config = parse_json(read_bytes(folder_ / "back/config.json"));
  EXPECT_EQ(config.at("eos_token_id"), 2);
  EXPECT_TRUE(config.at("pad_token_id").is_null());
  // A resumed run does not need the tokenizer's path, a new run does.
  fs::remove(folder_ / "encoder.json");
  result = tune("run", "te", tokenizer + " --set training.train_steps=2 --set checkpoint.resume=auto");
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_EQ(exported("run"), files);
  result = tune("new", "te", tokenizer);
  EXPECT_EQ(result.code, 2);
  EXPECT_NE(result.error.find("data.tokenizer: " + at("encoder.json")), std::string::npos) << result.error;
  EXPECT_FALSE(fs::exists(folder_ / "new/checkpoints/latest"));
  // The tokenizer may be larger than the model's vocabulary if all tokens of the data are within it.
  std::string vocabulary = "{";
  for (int i = 0; i < 100; ++i) vocabulary += fmt::format("\"t{}\": {}, ", i, i);
  write_bytes(folder_ / "encoder.json", vocabulary + R"("<|endoftext|>": 100})");
  result = tune("new", "te", tokenizer);
  EXPECT_EQ(result.code, 0) << result.error;
}

// A chat model may have several end tokens, which only the files of the base name.
TEST_F(TunedModel, KeepsTheTokenIdsOfItsBaseWithTheSameTokenizer) {
  const fs::path source = copy_fixture("qwen2", folder_ / "hf");
  fs::create_directory(folder_ / "bare");
  for (const fs::path& folder : {source, folder_ / "bare"}) {
    write_bytes(folder / "vocab.json", R"({"a": 0, "b": 1, "<|endoftext|>": 2})");
    write_bytes(folder / "merges.txt", "#version: 0.2\n");
  }
  patch_config(source, {{"eos_token_id", {2, 0}}});
  write_bytes(source / "generation_config.json", R"({"eos_token_id": [2, 0]})");
  const std::string tokenizer = " --set data.tokenizer=" + at("bare");
  ASSERT_EQ(convert("import " + at("hf") + " --out " + at("te")).code, 0);
  RunResult result = tune("run", "hf", tokenizer);
  ASSERT_EQ(result.code, 0) << result.error;
  EXPECT_EQ(exported("run"), (std::vector<std::string>{"config.json", "generation_config.json", "merges.txt",
                                                       "model.safetensors", "vocab.json"}));
  EXPECT_EQ(parse_json(read_bytes(folder_ / "back/config.json")).at("eos_token_id"), nlohmann::json({2, 0}));
  // Another tokenizer does not have these ids.
  write_bytes(folder_ / "bare/vocab.json", R"({"b": 0, "a": 1, "<|endoftext|>": 2})");
  fs::remove_all(folder_ / "run");
  result = tune("run", "hf", tokenizer);
  ASSERT_EQ(result.code, 0) << result.error;
  EXPECT_EQ(exported("run"),
            (std::vector<std::string>{"config.json", "merges.txt", "model.safetensors", "vocab.json"}));
  EXPECT_EQ(parse_json(read_bytes(folder_ / "back/config.json")).at("eos_token_id"), 2);
}

TEST_F(TeConvert, ALinkToTheOutputFolderStays) {
  ASSERT_EQ(convert("import " + fixture("qwen2").string() + " --out " + at("te")).code, 0);
  fs::create_directory(folder_ / "model");
  write_bytes(folder_ / "model/config.json", "old");
  fs::create_directory_symlink("model", folder_ / "link");
  const RunResult exported = convert("export " + at("te") + " --force --out " + at("link"));
  ASSERT_EQ(exported.code, 0) << exported.error;
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
  EXPECT_TRUE(fs::exists(folder_ / "model/model.safetensors"));
}

TEST_F(TeConvert, ExportWarnsAboutAMissingTokenizer) {
  ASSERT_EQ(convert("import " + fixture("qwen2").string() + " --out " + at("te")).code, 0);
  fs::remove_all(folder_ / "te/hugging_face");
  const RunResult exported = convert("export " + at("te") + " --out " + at("back"));
  ASSERT_EQ(exported.code, 0) << exported.error;
  EXPECT_NE(exported.error.find("add one with --tokenizer PATH"), std::string::npos) << exported.error;
}

// The model has 61 tokens.
TEST_F(TeConvert, ExportWarnsAboutATokenizerOfAnotherModel) {
  ASSERT_EQ(convert("import " + fixture("qwen2").string() + " --out " + at("te")).code, 0);
  for (const int tokens : {61, 257}) {
    std::string vocabulary = "{";
    for (int i = 1; i < tokens; ++i) vocabulary += fmt::format("\"t{}\": {}, ", i, i);
    fs::create_directories(folder_ / "other");
    write_bytes(folder_ / "other/vocab.json", vocabulary + R"("<|endoftext|>": 0})");
    write_bytes(folder_ / "other/merges.txt", "#version: 0.2\n");
    const RunResult exported =
        convert("export " + at("te") + " --force --out " + at("back") + " --tokenizer " + at("other"));
    ASSERT_EQ(exported.code, 0) << exported.error;
    const std::string warning = fmt::format(
        "te-convert: warning: tokenizer {} has 257 tokens, but the model of {} has 61: is it the one that "
        "the "
        "model was trained with?\n",
        at("other"), at("te/step_00000000"));
    EXPECT_EQ(exported.error, tokens == 61 ? "" : warning);
  }
}

TEST_F(TeConvert, ErrorsAreOneLineAndLeaveNoFiles) {
  const std::string gpt2 = fixture("gpt2").string();
  expect_refused("", "a subcommand is required: import, export, ");
  expect_refused("imprt " + gpt2, "unknown argument imprt; did you mean 'import'?");
  expect_refused("import " + gpt2 + " --output " + at("te"), "unknown option --output; did you mean --out?");
  expect_refused("import " + gpt2, "--out is required");
  expect_refused("import /nowhere --out " + at("te"), "/nowhere/config.json: not found");
  expect_refused("import " + gpt2 + " --out /proc/nowhere", "cannot be created");
  expect_refused("import " + gpt2 + " --format llama2c --out " + at("te"), "gpt2");
  write_bytes(folder_ / "stories.bin", "weights");
  expect_refused(
      "import " + at("stories.bin") + " --out " + at("te"),
      "stories.bin: is a file, not the folder of a Hugging Face model; for a file of llama2.c, give "
      "--format llama2c");
  expect_refused("import " + gpt2 + " --format pytorch --out " + at("te"), "--format");
  expect_refused("export /nowhere --out " + at("hf"), "/nowhere");
  ASSERT_EQ(convert("import " + gpt2 + " --out " + at("te")).code, 0);
  expect_refused("import " + gpt2 + " --out " + at("te"), "te: exists; give another folder, or --force");
  ASSERT_EQ(convert("import " + gpt2 + " --out " + at("te") + " --force").code, 0);
  expect_refused("export " + at("te") + " --out " + at("te") + " --force", "is not the folder of a model");
  expect_refused("export " + at("te") + " --out " + at("hf") + " --tokenizer /nowhere",
                 "--tokenizer /nowhere");
  expect_refused("export " + at("te") + " --out " + at("hf") + " --max-shard-size 5XB", "--max-shard-size");
  // --force does not replace a folder in which training continued.
  fs::create_directory(folder_ / "te/step_00000005");
  expect_refused("import " + gpt2 + " --out " + at("te") + " --force", "--force replaces nothing else");
  // A checkpoint that was damaged after it was written.
  std::string weights = read_bytes(folder_ / "te/step_00000000/model.safetensors");
  weights.back() = static_cast<char>(weights.back() ^ 1);
  write_bytes(folder_ / "te/step_00000000/model.safetensors", weights);
  expect_refused("export " + at("te") + " --out " + at("hf"), "checksum");
}

// B is zero after a step at such a learning rate, so the merged weights are those of the base.
TEST_F(TunedModel, MergesAnAdapterAndKeepsTheTokenizer) {
  for (const char* name : {"llama3_tied_bf16", "mixtral"}) {
    SCOPED_TRACE(name);
    for (const char* folder : {"hf", "lora", "peft"}) fs::remove_all(folder_ / folder);
    const fs::path source = copy_fixture(name, folder_ / "hf");
    write_bytes(source / "tokenizer.json", "{}");
    ASSERT_EQ(convert("import " + at("hf") + " --out " + at("te") + " --force").code, 0);
    RunResult result =
        tune("lora", "hf", " --set adapter.type=lora --set adapter.rank=8 --set 'adapter.target=all-linear'");
    ASSERT_EQ(result.code, 0) << result.error;
    for (const std::string option : {"--dtype fp32", "--tokenizer bytes", "--max-shard-size 1GB"})
      expect_refused("export " + at("lora") + " --out " + at("peft") + " " + option,
                     "leave out " + option.substr(0, option.find(' ')));
    result = convert("export " + at("lora") + " --out " + at("peft"));
    ASSERT_EQ(result.code, 0) << result.error;
    for (const std::string& adapter :
         {at("lora"), at("lora") + " --base " + at("hf"), at("peft") + " --base " + at("hf")}) {
      result = convert("merge " + adapter + " --out " + at("merged") + " --force");
      ASSERT_EQ(result.code, 0) << result.error;
      EXPECT_EQ(entries(folder_ / "merged"),
                (std::vector<std::string>{"hugging_face", "latest", "step_00000000"}));
      result = convert("export " + at("merged") + " --out " + at("back") + " --force");
      ASSERT_EQ(result.code, 0) << result.error;
      EXPECT_TRUE(tensors_of(folder_ / "back") == tensors_of(fixture(name)));
      EXPECT_EQ(read_bytes(folder_ / "back/tokenizer.json"), "{}");
    }
  }
  expect_refused("merge " + at("te") + " --out " + at("other"), "is not an adapter checkpoint");
}

}  // namespace
}  // namespace te::testing
