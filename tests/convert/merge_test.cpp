// te-convert merge: which config and tokenizer the merged checkpoint has.
#include <set>

#include "checkpoint/reader.h"
#include "convert/foreign_model.h"
#include "convert/tools_testing.h"

namespace te::testing {
namespace {

/// Sizes for FP8 blocks of 128 x 128.
const Overrides kBlocks = {"model.num_layers=3", "model.hidden_size=128", "model.ffn_hidden_size=128",
                           "model.num_query_groups=4", "training.train_steps=1"};
/// Layer 0 and the first linear layer of every MLP stay in BF16.
const Overrides kMixed = {"precision.fp8=hybrid",          "precision.fp8_recipe=blockwise",
                          "precision.first_layers_bf16=1", "precision.overrides=linear_fc1: bf16",
                          "data.tokenizer=bytes",          "data.document_mask=true"};

class Merge : public ::testing::Test {
 protected:
  void train_adapter(const std::string& name, const std::string& base, const Overrides& more = {}) const {
    run(folder_, name,
        kBlocks + kMixed + Overrides{"adapter.type=lora", "adapter.rank=8", "checkpoint.init_from=" + base} +
            more);
  }
  Result convert(const std::string& arguments) const {
    Result result = te_convert(folder_, arguments);
    EXPECT_EQ(result.code, 0) << result.error;
    return result;
  }
  config::Config merged(const std::string& arguments) const {
    convert("merge " + arguments + " --force --out " + (folder_ / "merged"));
    return checkpoint::Reader(folder_ / "merged").run_config();
  }
  config::Config config_of(const std::string& run) const {
    return checkpoint::Reader(folder_.checkpoint(run, 1)).run_config();
  }
  /// The file with the end token that the merged checkpoint keeps.
  std::string end_token() const { return read_file(folder_ / "merged/hugging_face/generation_config.json"); }
  /// The names of the FP8 tensors that `export --fp8 block` makes of the merged checkpoint.
  std::set<std::string> fp8_tensors() const {
    convert("export " + (folder_ / "merged") + " --fp8 block --force --out " + (folder_ / "fp8"));
    std::set<std::string> names;
    const SafetensorsReader file(folder_ / "fp8/model.safetensors");
    for (const SafetensorsTensor& tensor : file.tensors())
      if (tensor.file_dtype == "F8_E4M3") names.insert(tensor.name);
    return names;
  }

  TrainFolder folder_;
};

TEST_F(Merge, KeepsTheConfigOfTheAdapterRun) {
  run(folder_, "base", kBlocks + Overrides{"model.seq_length=8"});
  const std::string hf = folder_ / "hf", base = folder_.run_folder("base"), own = folder_.run_folder("lora");
  convert("export " + base + " --out " + hf);
  for (const std::string& start : {hf, base}) {
    SCOPED_TRACE(start);
    std::filesystem::remove_all(own);
    train_adapter("lora", start, {"model.rope_theta=500"});
    config::Config trained = config_of("lora");
    trained.adapter = {};
    trained.checkpoint.init_from.clear();
    for (const std::string& arguments : {own, own + " --base " + start}) {
      EXPECT_EQ(config::to_yaml(merged(arguments)), config::to_yaml(trained)) << arguments;
      std::set<std::string> expected;
      for (const std::string layer : {"1", "2"})
        for (const char* linear : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                                   "self_attn.o_proj", "mlp.down_proj"})
          expected.insert("model.layers." + layer + "." + linear + ".weight");
      EXPECT_EQ(fp8_tensors(), expected);
    }
  }
}

// Of several adapters, the run that came last; a PEFT folder names no run.
TEST_F(Merge, KeepsTheConfigOfTheLastAdapterRun) {
  run(folder_, "base", kBlocks);
  const std::string base = folder_.run_folder("base"), first = folder_.run_folder("first"),
                    second = folder_.run_folder("second"), peft = folder_ / "peft";
  train_adapter("first", base);
  train_adapter("second", base, {"precision.first_layers_bf16=2"});
  convert("export " + first + " --out " + peft);
  for (const std::string& arguments :
       {first + " " + second, first + " " + second + " " + peft + " --base " + base})
    EXPECT_EQ(merged(arguments).precision.first_layers_bf16, 2) << arguments;
  EXPECT_EQ(config::to_yaml(merged(peft + " --base " + base)), config::to_yaml(config_of("base")));
}

// The tokenizer of the last adapter run, or of the base if that run keeps none, whether or not --base names the base.
TEST_F(Merge, KeepsTheTokenizerOfTheAdapterRun) {
  write_tokenizer(folder_ / "of_base", 3);
  write_tokenizer(folder_ / "of_run", 5);
  const std::string of_base = read_file(folder_ / "of_base/generation_config.json"),
                    of_run = read_file(folder_ / "of_run/generation_config.json");
  run(folder_, "base", kBlocks + Overrides{"data.tokenizer=" + (folder_ / "of_base")});
  const std::string base = folder_.run_folder("base"), first = folder_.run_folder("first"),
                    last = folder_.run_folder("last"), hf = folder_ / "hf";
  train_adapter("first", base, {"data.tokenizer="});
  train_adapter("last", base, {"data.tokenizer=" + (folder_ / "of_run")});
  for (const std::string& named : {std::string(), " --base " + base}) {
    SCOPED_TRACE(named);
    merged(first + " " + last + named);
    EXPECT_EQ(end_token(), of_run);
    std::filesystem::rename(last + "/checkpoints/hugging_face", folder_ / "moved");
    merged(first + " " + last + named);
    EXPECT_EQ(end_token(), of_base);
    std::filesystem::rename(folder_ / "moved", last + "/checkpoints/hugging_face");
  }
  convert("export " + base + " --out " + hf);
  train_adapter("of_folder", hf, {"data.tokenizer=" + (folder_ / "of_run")});
  for (const std::string& named : {std::string(), " --base " + hf}) {
    merged(folder_.run_folder("of_folder") + named);
    EXPECT_EQ(end_token(), of_run) << named;
  }
}

}  // namespace
}  // namespace te::testing
