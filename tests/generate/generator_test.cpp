// Text of a tiny model that has memorized one line.
#include "generate/generator.h"

#include <csignal>

#include "generate/generate_testing.h"

namespace te::testing {
namespace {

using generate::Completion;
using generate::FinishReason;
using generate::GenerateOptions;
using generate::Generator;

/// Trains the model on repetitions of "the quick fox. ", with bytes as tokens.
class GeneratorTest : public ::testing::Test {
 protected:
  static config::Config line_config() {
    config::Config config = tiny_config(config::Family::llama);
    config.model.vocab_size = 257;
    config.model.seq_length = config.model.max_position_embeddings = 48;
    config.training.micro_batch_size = config.training.global_batch_size = 15;
    return config;
  }
  static void SetUpTestSuite() {
    const config::Config config = line_config();
    TinyModel tiny(config);
    std::vector<int32_t> tokens, targets;
    for (size_t sample = 0; sample < 15; ++sample) {  // the line, starting at each of its characters
      for (size_t i = 0; i < 48; ++i) {
        tokens.push_back(line_at(sample + i));
        targets.push_back(line_at(sample + i + 1));
      }
    }
    tiny.set_batch(tokens, targets);
    double loss = 10;
    for (int step = 0; step < 300 && loss > 0.05; ++step) loss = tiny.train_step(1e-2f);
    ASSERT_LT(loss, 0.2);
    source_ = std::make_unique<MemorySource>(tiny, config);
  }
  static void TearDownTestSuite() { source_.reset(); }
  static int32_t line_at(size_t i) {
    static const std::string line = "the quick fox. ";
    return static_cast<uint8_t>(line[i % line.size()]);
  }

  std::vector<Completion> run(const std::vector<std::string>& prompts, const GenerateOptions& options,
                              int64_t batch = 4, const Generator::OnText& on_text = {}) {
    ReadyDecoder decoder(cpu_, line_config(), *source_, {.batch = batch, .max_rows = 32});
    std::vector<std::vector<int32_t>> tokens;
    for (const std::string& prompt : prompts)
      tokens.push_back(Generator::encode(*bytes_, prompt, options, 257, 48));
    return Generator(decoder.get(), *bytes_, options).run(cpu_, tokens, on_text);
  }

  static std::unique_ptr<MemorySource> source_;
  const Context cpu_ = Context::cpu();
  const std::unique_ptr<text::Tokenizer> bytes_ = text::make_tokenizer("bytes");
};
std::unique_ptr<MemorySource> GeneratorTest::source_;

TEST_F(GeneratorTest, GreedyTextIsTheLine) {
  const std::vector<Completion> results = run({"the qu"}, {.max_tokens = 20});
  EXPECT_EQ(results[0].text, "ick fox. the quick f");
  EXPECT_EQ(results[0].tokens.size(), 20u);
  EXPECT_EQ(results[0].finish_reason, FinishReason::max_tokens);
}

TEST_F(GeneratorTest, StreamsTokenByToken) {
  std::vector<std::string> parts;
  bool ended = false;
  run({"the qu"}, {.max_tokens = 5}, 1, [&](size_t, const std::string& text, bool last) {
    parts.push_back(text);
    ended = last;
  });
  EXPECT_EQ(parts, (std::vector<std::string>{"i", "c", "k", " ", "f"}));
  EXPECT_TRUE(ended);
}

TEST_F(GeneratorTest, PromptsOfABatchAreIndependent) {
  const std::vector<std::string> prompts = {"the qu", "fox. the quick ", "x", "k fox. th", "quick f"};
  GenerateOptions drawn{.max_tokens = 25};
  drawn.sampling = {.temperature = 4.0, .top_k = 5, .seed = 11};  // the model's probabilities are close to 1
  for (const GenerateOptions& options : {GenerateOptions{.max_tokens = 25}, drawn}) {
    const std::vector<Completion> together = run(prompts, options, 5), some = run(prompts, options, 2),
                                  alone = run(prompts, options, 1);
    for (size_t i = 0; i < prompts.size(); ++i) {
      EXPECT_EQ(together[i].tokens, alone[i].tokens) << i;
      EXPECT_EQ(some[i].tokens, alone[i].tokens) << i;
      EXPECT_EQ(together[i].text, alone[i].text) << i;
    }
  }
  EXPECT_NE(run({"the qu"}, drawn)[0].text, run({"the qu"}, {.max_tokens = 25})[0].text);
}

TEST_F(GeneratorTest, StopStringsEndTheTextBeforeThem) {
  const std::vector<Completion> results =
      run({"the qu", "the quick fox. "}, {.max_tokens = 40, .stops = {"x. t", "zz"}});
  EXPECT_EQ(results[0].text, "ick fo");
  EXPECT_EQ(results[0].finish_reason, FinishReason::stop_string);
  EXPECT_EQ(results[1].text, "the quick fo");
}

TEST_F(GeneratorTest, TheContextEndsTheText) {
  const std::vector<Completion> results = run({"the qu"}, {.max_tokens = 1000});
  EXPECT_EQ(results[0].finish_reason, FinishReason::context);
  EXPECT_EQ(results[0].tokens.size() + 6, 48u);
}

// The second prompt waits for the only slot, so it has no result.
TEST_F(GeneratorTest, AnInterruptionCompletesRunningPrompts) {
  ReadyDecoder decoder(cpu_, line_config(), *source_, {.batch = 1, .max_rows = 32});
  const GenerateOptions options{.max_tokens = 20};
  const std::vector<int32_t> prompt = Generator::encode(*bytes_, "the qu", options, 257, 48);
  volatile std::sig_atomic_t stop = 0;
  std::vector<size_t> done;
  Generator(decoder.get(), *bytes_, options)
      .run(
          cpu_, {prompt, prompt}, [&](size_t, const std::string& text, bool) { stop = text == "k"; }, &stop,
          [&](size_t index, const Completion& result) {
            done.push_back(index);
            EXPECT_EQ(result.text, "ick");
            EXPECT_EQ(result.finish_reason, FinishReason::interrupted);
          });
  EXPECT_EQ(done, std::vector<size_t>{0});
}

TEST_F(GeneratorTest, RefusesPromptsThatDoNotFit) {
  const GenerateOptions options;
  EXPECT_THROW(Generator::encode(*bytes_, std::string(48, 'a'), options, 257, 48), UserError);
  EXPECT_EQ(Generator::encode(*bytes_, std::string(47, 'a'), options, 257, 48).size(), 47u);
  EXPECT_THROW(Generator::encode(*bytes_, "z", options, 100, 48), UserError);
  // An empty prompt starts after the end-of-document token.
  EXPECT_EQ(Generator::encode(*bytes_, "", options, 257, 48), std::vector<int32_t>{256});
}

}  // namespace
}  // namespace te::testing
