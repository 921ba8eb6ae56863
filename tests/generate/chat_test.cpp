// Conversations: prompts of the template, the ends of replies, and the reuse of the cache.
#include "generate/chat.h"

#include <optional>

#include "generate/generate_testing.h"
#include "te_generate_testing.h"

namespace te::testing {
namespace {

using generate::Chat;
using generate::ChatPrompt;

/// Each turn is the role's letter, the message and a line break; a reply ends with the end-of-document token.
constexpr const char* kTemplate =
    "system: S{content}\\n\nuser: U{content}\\n\nassistant: A{content}{eos}{stop}\n";

/// A tokenizer with another end-of-document token.
class EndingWith : public text::Tokenizer {
 public:
  EndingWith(const text::Tokenizer& other, int32_t end) : other_(other), end_(end) {}
  std::string decode(std::span<const int32_t> tokens) const override { return other_.decode(tokens); }
  int64_t vocab_size() const override { return other_.vocab_size(); }
  int32_t end_of_document() const override { return end_; }
  std::string name() const override { return other_.name(); }
  std::optional<int32_t> find_token(std::string_view token) const override {
    return other_.find_token(token);
  }

 private:
  void encode_text(std::string_view text, std::vector<int32_t>& tokens,
                   text::SpecialTokens special) const override {
    other_.encode(text, tokens, special);
  }
  const text::Tokenizer& other_;
  int32_t end_;
};

/// A tokenizer that shows each byte as a letter.
class Letters final : public EndingWith {
 public:
  explicit Letters(const text::Tokenizer& other) : EndingWith(other, other.end_of_document()) {}
  std::string decode(std::span<const int32_t> tokens) const override {
    std::string text;
    for (const int32_t token : tokens) text += static_cast<char>('a' + token % 26);
    return text;
  }
};

class ChatTest : public ::testing::Test {
 protected:
  static config::Config chat_config() {
    config::Config config = tiny_config(config::Family::llama);
    config.model.vocab_size = 257;
    config.model.seq_length = config.model.max_position_embeddings = 64;
    return config;
  }
  Chat chat(ReadyDecoder& decoder, const generate::ChatOptions& options) const {
    return {decoder.get(), *bytes_, prompter(*bytes_), options};
  }
  generate::ChatPrompter prompter(const text::Tokenizer& tokenizer) const {
    return [this, &tokenizer](const text::Conversation& conversation) {
      return generate::chat_prompt(conversation, template_, tokenizer);
    };
  }
  std::string text(const std::vector<int32_t>& tokens) const { return bytes_->decode(tokens); }

  const std::unique_ptr<text::Tokenizer> bytes_ = text::make_tokenizer("bytes");
  const text::ChatTemplate template_ = text::ChatTemplate::parse("letters", kTemplate);
};

TEST_F(ChatTest, PromptsEndWhereTheReplyStarts) {
  const ChatPrompt first =
      generate::chat_prompt({{"system", "be", ""}, {"user", "hi", ""}}, template_, *bytes_);
  EXPECT_EQ(text(first.tokens), "Sbe\nUhi\nA");
  EXPECT_EQ(first.turn_end, 256);
  const ChatPrompt second = generate::chat_prompt(
      {{"user", "hi", ""}, {"assistant", "yo", ""}, {"user", "so", ""}}, template_, *bytes_);
  std::vector<int32_t> expected;
  bytes_->encode("Uhi\nAyo", expected);
  expected.push_back(256);
  bytes_->encode("Uso\nA", expected);
  EXPECT_EQ(second.tokens, expected);
  EXPECT_THROW(generate::default_chat_template(*bytes_), UserError);
}

// The end of a turn is a special token or a text, not the last token in the loss, which replies may contain.
TEST_F(ChatTest, TurnsEndWithASpecialTokenOrAText) {
  const auto end = [&](const std::string& after) {
    const auto chat = text::ChatTemplate::parse("t", "user: {content}\nassistant: A{content}" + after + "\n");
    const ChatPrompt prompt = generate::chat_prompt({{"user", "a", ""}}, chat, *bytes_);
    return std::pair(prompt.turn_end, prompt.turn_end_text);
  };
  using End = std::pair<std::optional<int32_t>, std::string>;
  EXPECT_EQ(end(R"({eos}\n)"), End(256, ""));
  EXPECT_EQ(end(R"(#{eos}{stop}\n)"), End(256, ""));
  EXPECT_EQ(end("#{stop}"), End(std::nullopt, "#"));
  EXPECT_EQ(end(R"({<|im_end|>}{stop}\n)"), End(std::nullopt, "<|im_end|>"));
  EXPECT_EQ(end(R"(\n)"), End(std::nullopt, ""));
  EXPECT_EQ(end("{stop}#"), End(std::nullopt, ""));
}

// Each reply equals that of a generator that runs the full conversation, although only the new part was run.
TEST_F(ChatTest, ReusingTheCacheGivesTheSameReplies) {
  const config::Config config = chat_config();
  TinyModel tiny(config);
  const MemorySource source(tiny, config);
  const Context& cpu = tiny.context();
  ReadyDecoder decoder(cpu, config, source, {.batch = 1, .max_rows = 32});
  ReadyDecoder fresh(cpu, config, source, {.batch = 1, .max_rows = 32});
  for (const double penalty : {1.0, 1.4}) {
    generate::ChatOptions options{
        .sampling = {.repetition_penalty = penalty}, .max_tokens = 6, .system = "be"};
    decoder.get().reset(0);
    Chat talk = chat(decoder, options);
    for (const char* message : {"hi", "so", "ok"}) {
      std::string streamed;
      const std::string reply = talk.reply(cpu, message, [&](const std::string& part) { streamed += part; });
      EXPECT_EQ(streamed, reply);
      text::Conversation before = talk.conversation();
      ASSERT_EQ(before.back().role, "assistant");
      before.pop_back();
      const ChatPrompt prompt = generate::chat_prompt(before, template_, *bytes_);
      EXPECT_EQ(talk.prompt_tokens(), static_cast<int64_t>(prompt.tokens.size()));
      generate::Generator generator(fresh.get(), *bytes_, {.sampling = options.sampling, .max_tokens = 6});
      EXPECT_EQ(generator.run(cpu, {prompt.tokens})[0].text, reply) << message;
      EXPECT_GE(talk.reused_tokens(), before.size() > 2 ? 8 : 0);
    }
  }
}

// The same with the turns of a model's chat template, whose prompts consist of different texts each time.
TEST_F(ChatTest, ReusingTheCacheGivesTheSameRepliesWithChatTurns) {
  const auto turns = text::ChatTurns::parse(R"({
    "format": "te-train chat turns 1", "template": "", "end": null, "tokens": [], "without_system": {
      "only": [{"text": "U"}, {"message": "user", "trim": "both"}, {"text": "A"}],
      "first": [{"text": "U"}, {"message": "user", "trim": "both"}, {"text": "A"},
                {"message": "assistant", "trim": "none", "reasoning": "drop"}],
      "middle": [{"text": "U"}, {"message": "user", "trim": "both"}, {"text": "A"},
                 {"message": "assistant", "trim": "none", "reasoning": "drop"}],
      "last": [{"text": "U"}, {"message": "user", "trim": "both"}, {"text": "A"}]}})",
                                            "turns");
  const generate::ChatPrompter prompter = [&](const text::Conversation& conversation) {
    return generate::chat_prompt(conversation, turns, *bytes_);
  };
  const config::Config config = chat_config();
  TinyModel tiny(config);
  const MemorySource source(tiny, config);
  const Context& cpu = tiny.context();
  ReadyDecoder decoder(cpu, config, source, {.batch = 1, .max_rows = 32});
  ReadyDecoder fresh(cpu, config, source, {.batch = 1, .max_rows = 32});
  Chat talk(decoder.get(), *bytes_, prompter, {.sampling = {}, .max_tokens = 5});
  int64_t before = 0;
  for (const char* message : {"hi ", "so", "ok"}) {
    const std::string reply = talk.reply(cpu, message);
    text::Conversation asked = talk.conversation();
    ASSERT_EQ(asked.back().role, "assistant");
    asked.pop_back();
    const ChatPrompt prompt = prompter(asked);
    generate::Generator generator(fresh.get(), *bytes_, {.sampling = {}, .max_tokens = 5});
    EXPECT_EQ(generator.run(cpu, {prompt.tokens})[0].text, reply) << message;
    EXPECT_GE(talk.reused_tokens(), before);  // at least the previous prompt
    before = talk.prompt_tokens();
  }
}

TEST_F(ChatTest, RepliesEndWithTheTurnOrTheContext) {
  const config::Config config = chat_config();
  TinyModel tiny(config);
  const MemorySource source(tiny, config);
  const Context& cpu = tiny.context();
  ReadyDecoder decoder(cpu, config, source, {.batch = 1, .max_rows = 32});
  Chat talk = chat(decoder, {.sampling = {}, .max_tokens = 1000});
  talk.reply(cpu, "hi");
  EXPECT_EQ(talk.finish_reason(), generate::FinishReason::context);
  EXPECT_THROW(talk.reply(cpu, "more"), UserError);
  // If the model generates the end of the turn first, the reply is empty and the conversation does not keep the
  // message.
  ReadyDecoder again(cpu, config, source, {.batch = 1, .max_rows = 32});
  const ChatPrompt prompt = generate::chat_prompt({{"user", "hi", ""}}, template_, *bytes_);
  generate::Generator generator(again.get(), *bytes_, {.max_tokens = 1});
  const EndingWith tokenizer(*bytes_, generator.run(cpu, {prompt.tokens})[0].tokens[0]);
  Chat silent(again.get(), tokenizer, prompter(tokenizer), {.sampling = {}, .max_tokens = 9});
  EXPECT_EQ(silent.reply(cpu, "hi"), "");
  EXPECT_EQ(silent.finish_reason(), generate::FinishReason::end_token);
  // The same if the token is an end token of the model's files and the template has another end.
  Chat named(
      again.get(), *bytes_, prompter(*bytes_),
      {.sampling = {}, .max_tokens = 9, .ends = generate::EndTokens({7, tokenizer.end_of_document()})});
  EXPECT_EQ(named.reply(cpu, "hi"), "");
  EXPECT_EQ(named.finish_reason(), generate::FinishReason::end_token);
  EXPECT_TRUE(silent.conversation().empty());
}

// The template's end of turn is not a special token of the tokenizer: the model generates its name as text.
TEST_F(ChatTest, RepliesEndBeforeTheTextOfTheTurnsEnd) {
  const config::Config config = chat_config();
  TinyModel tiny(config);
  const MemorySource source(tiny, config);
  ReadyDecoder decoder(tiny.context(), config, source, {.batch = 1, .max_rows = 32});
  const Letters letters(*bytes_);
  const generate::ChatOptions options{.sampling = {.repetition_penalty = 100}, .max_tokens = 9};
  const auto talk = [&](const std::string& end) {
    const auto chat = text::ChatTemplate::parse("t", "user: U{content}\nassistant: A{content}" + end + "\n");
    const generate::ChatPrompter prompter = [chat, &letters](const text::Conversation& conversation) {
      return generate::chat_prompt(conversation, chat, letters);
    };
    return Chat(decoder.get(), letters, prompter, options);
  };
  const std::string all = talk("{eos}").reply(tiny.context(), "hi");
  ASSERT_EQ(all.size(), 9U);
  const size_t at = all.find(all.substr(4, 3));
  Chat ended = talk("{" + all.substr(4, 3) + "}{stop}.");
  std::string streamed;
  EXPECT_EQ(ended.reply(tiny.context(), "hi", [&](const std::string& part) { streamed += part; }),
            all.substr(0, at));
  EXPECT_EQ(streamed, all.substr(0, at));
  EXPECT_EQ(ended.conversation().back().content, streamed);
  EXPECT_EQ(ended.finish_reason(), generate::FinishReason::end_token);
}

class TeGenerateChat : public GenerateFolder {};

// `timeout` sends SIGINT after three seconds, when the process waits for the second message, and SIGKILL (137) later.
TEST_F(TeGenerateChat, CtrlCEndsTheProcessThatWaitsForAMessage) {
  const std::string wait = "mkfifo " + file("in") + "; exec 3<>" + file("in") +
                           "; printf 'hi\\n' >&3; timeout --preserve-status -s INT -k 5 3 <&3";
  const Result result =
      run("chat --checkpoint " TE_SOURCE_DIR "/tests/fixtures/evaluate/gpt2 --template plain --max-tokens 2",
          wait);
  EXPECT_EQ(result.code, 130) << result.error;
  TE_EXPECT_CONTAINS(result.error, "max tokens; ");  // the first reply is complete
}

}  // namespace
}  // namespace te::testing
