// te-generate --checkpoint BASE --adapter RUN: config and tokenizer are of the run, as with --checkpoint RUN.
#include "generate/model_source.h"
#include "te_generate_testing.h"

namespace te::testing {
namespace {

class TeGenerateAdapter : public GenerateFolder {
 protected:
  TeGenerateAdapter() {
    testing::run(runs_, "base", {"data.tokenizer=bytes", "model.ffn_hidden_size=64"});
    testing::run(runs_, "first", of(runs_.run_folder("base")));
  }
  static Overrides of(const std::string& base) {
    return {"model.ffn_hidden_size=64", "adapter.type=lora", "adapter.rank=8", "optimizer.lr=0.02",
            "checkpoint.init_from=" + base};
  }
  /// The report of te-generate perplexity without the lines that name the checkpoint and the speed.
  std::string perplexity(const std::string& arguments) const {
    const Result result = run("perplexity --max-samples 6 --data " + (runs_ / "valid") + arguments);
    EXPECT_EQ(result.code, 0) << result.error;
    const size_t begin = std::min(result.out.find('\n'), result.out.size());
    return result.out.substr(begin, result.out.find("tokens/s") - begin);
  }

  TrainFolder runs_;
};

TEST_F(TeGenerateAdapter, HasTheConfigOfItsRun) {
  const std::string base = runs_.run_folder("base"), lora = runs_.run_folder("lora"),
                    first = runs_.run_folder("first");
  testing::run(runs_, "lora",
               of(base) + Overrides{"model.seq_length=32", "model.rope_theta=500", "data.document_mask=true",
                                    "precision.first_layers_bf16=1", "precision.fp8_output_layer=true"});
  const std::string named = " --checkpoint " + base + " --adapter ";
  for (const std::string precision : {"", " --dtype bf16 --fp8 hybrid"}) {
    EXPECT_EQ(perplexity(named + lora + precision), perplexity(" --checkpoint " + lora + precision));
    EXPECT_EQ(perplexity(named + first + precision), perplexity(" --checkpoint " + first + precision));
  }
  const auto last = generate::open_model(base, {first, lora}), alone = generate::open_model(lora);
  EXPECT_EQ(last->model().rope_theta, alone->model().rope_theta);
  EXPECT_EQ(last->precision().first_layers_bf16, 1);
}

TEST_F(TeGenerateAdapter, HasTheTokenizerOfItsRun) {
  const std::string lora = runs_.run_folder("lora"), base = runs_.run_folder("named"),
                    first = runs_.run_folder("first"), kept = lora + "/checkpoints/hugging_face";
  const auto expect_equal = [](const generate::ModelSource& a, const generate::ModelSource& b, int end) {
    EXPECT_EQ(a.tokenizer(), b.tokenizer());
    ASSERT_TRUE(a.end_tokens() && b.end_tokens());
    EXPECT_EQ(a.end_tokens()->ids(), b.end_tokens()->ids());
    EXPECT_EQ(a.end_tokens()->ids(), std::vector<int32_t>{end});
  };
  write_tokenizer(file("of_base"), 3);
  write_tokenizer(file("of_run"), 5);
  testing::run(runs_, "named", {"model.ffn_hidden_size=64", "data.tokenizer=" + file("of_base")});
  testing::run(runs_, "lora", of(base) + Overrides{"data.tokenizer=" + file("of_run")});
  expect_equal(*generate::open_model(base, {lora}), *generate::open_model(lora), 5);
  // A run that names no tokenizer, or whose kept files are on another machine, has the tokenizer of its base.
  EXPECT_EQ(generate::open_model(runs_.run_folder("base"), {first})->tokenizer(), "bytes");
  std::filesystem::remove_all(kept);
  std::filesystem::remove_all(file("of_run"));
  expect_equal(*generate::open_model(base, {lora}), *generate::open_model(base), 3);
}

}  // namespace
}  // namespace te::testing
