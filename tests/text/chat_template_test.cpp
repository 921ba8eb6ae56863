// Chat templates: what the built-in ones write, what counts in the loss, and every rule of the language broken
// once.
#include "text/chat/chat_template.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "testing/files.h"
#include "testing/temporary_folder.h"
#include "text/tokenizers/byte_tokenizer.h"

namespace te {
namespace {

using testing::TextFolder;
using testing::user_error_of;
using testing::write_file;

/// Bytes, and a few special tokens of one id each; notes where encode() was called.
class ChatTokenizer : public text::ByteTokenizer {
 public:
  mutable std::vector<std::string> encoded;

  std::optional<int32_t> begin_of_document() const override { return 257; }
  std::optional<int32_t> find_token(std::string_view token) const override {
    const auto found = std::find(kNames.begin(), kNames.end(), token);
    if (found == kNames.end()) return {};
    return static_cast<int32_t>(256 + (found - kNames.begin()));
  }
  std::string decode(std::span<const int32_t> tokens) const override {
    std::string text;
    for (const int32_t token : tokens) {
      if (token < 256) {
        text += static_cast<char>(token);
      } else {
        text += kNames[static_cast<size_t>(token - 256)];
      }
    }
    return text;
  }

 private:
  void encode_text(std::string_view text, std::vector<int32_t>& tokens,
                   text::SpecialTokens special) const override {
    EXPECT_EQ(special, text::SpecialTokens::kAsText);  // strangers' text makes no special token
    encoded.emplace_back(text);
    for (const char c : text) tokens.push_back(static_cast<uint8_t>(c));
  }
  const std::vector<std::string> kNames = {
      "</s>", "<s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"};
};

/// The text with [...] around what is in the loss.
std::string written(const text::ChatTemplate& chat_template, const text::Conversation& conversation) {
  const ChatTokenizer tokenizer;
  const text::ChatTemplate::Encoded encoded = chat_template.encode(conversation, tokenizer, "here:1");
  EXPECT_EQ(encoded.tokens.size(), encoded.mask.size());
  std::string text;
  int32_t before = 0;
  for (size_t i = 0; i < encoded.tokens.size(); ++i) {
    if (encoded.mask[i] != before) text += before != 0 ? "]" : "[";
    before = encoded.mask[i];
    text += tokenizer.decode({&encoded.tokens[i], 1});
  }
  return text + (before != 0 ? "]" : "");
}

const text::Conversation kTwoTurns = {{"system", "be kind", ""},
                                      {"user", " hi \n", ""},
                                      {"assistant", "hello", ""},
                                      {"user", "bye", ""},
                                      {"assistant", "ciao ", ""}};

TEST(ChatTemplate, BuiltinsWriteWhatTheirModelsKnow) {
  const auto write = [](const char* name, const text::Conversation& conversation) {
    return written(text::ChatTemplate::load(name), conversation);
  };
  EXPECT_EQ(
      write("chatml", kTwoTurns),
      "<|im_start|>system\nbe kind<|im_end|>\n<|im_start|>user\n hi \n<|im_end|>\n<|im_start|>assistant\n"
      "[hello<|im_end|>]\n<|im_start|>user\nbye<|im_end|>\n<|im_start|>assistant\n[ciao <|im_end|>]");
  EXPECT_EQ(write("llama2", kTwoTurns),
            "<s>[INST] <<SYS>>\nbe kind\n<</SYS>>\n\nhi [/INST][hello </s>]<s>[INST] bye [/INST][ciao </s>]");
  EXPECT_EQ(
      write("llama3", kTwoTurns),
      "<s><|start_header_id|>system<|end_header_id|>\n\nbe kind<|eot_id|><|start_header_id|>user"
      "<|end_header_id|>\n\nhi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n[hello<|eot_id|>]"
      "<|start_header_id|>user<|end_header_id|>\n\nbye<|eot_id|><|start_header_id|>assistant"
      "<|end_header_id|>\n\n[ciao<|eot_id|>]");
  EXPECT_EQ(write("plain", {{"user", "2+2?", ""}, {"assistant", "4", ""}}), "2+2?\n[4</s>]");
  EXPECT_EQ(write("plain", {{"user", "Who?", "A text."}, {"assistant", "Me", ""}}),
            "A text.\n\nWho?\n[Me</s>]");
  EXPECT_EQ(
      write("alpaca", {{"user", "Who?", "A text."}, {"assistant", "Me", ""}}),
      "Below is an instruction that describes a task, paired with an input that provides further context. "
      "Write a response that appropriately completes the request.\n\n### Instruction:\nWho?\n\n### Input:\n"
      "A text.\n\n### Response:\n[Me</s>]");
  EXPECT_EQ(
      write("alpaca", {{"user", "Who?", ""}, {"assistant", "Me", ""}}),
      "Below is an instruction that describes a task. Write a response that appropriately completes the "
      "request.\n\n### Instruction:\nWho?\n\n### Response:\n[Me</s>]");
  // Without a line of its own, a context follows its message.
  EXPECT_EQ(write("llama2", {{"user", "Who?", "A text."}, {"assistant", "Me", ""}}),
            "<s>[INST] Who?\n\nA text. [/INST][Me </s>]");
}

TEST(ChatTemplate, SpecialTokensComeFromBracesOnly) {
  const ChatTokenizer tokenizer;
  const text::ChatTemplate chatml = text::ChatTemplate::load("chatml");
  const auto encoded =
      chatml.encode({{"user", "<|im_end|>", ""}, {"assistant", "<|im_start|>", ""}}, tokenizer, "here:1");
  EXPECT_EQ(std::count_if(encoded.tokens.begin(), encoded.tokens.end(), [](int32_t t) { return t >= 256; }),
            4);
  EXPECT_EQ(tokenizer.encoded,
            (std::vector<std::string>{"user\n<|im_end|>", "\n", "assistant\n", "<|im_start|>", "\n"}));
  EXPECT_EQ(chatml.token_names(), (std::vector<std::string>{"<|im_start|>", "<|im_end|>"}));
  // A tokenizer without the token gets its name as text, in one piece with the text around it.
  const text::ByteTokenizer bytes;
  const auto as_text = chatml.encode({{"user", "a", ""}, {"assistant", "b", ""}}, bytes, "here:1");
  EXPECT_EQ(bytes.decode(as_text.tokens),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>");
}

TEST(ChatTemplate, EndsBeforeAnEmptyResponse) {
  const text::ChatTemplate plain = text::ChatTemplate::load("plain");
  EXPECT_EQ(written(plain, {{"user", "a", ""}, {"assistant", " \n", ""}}), "");
  EXPECT_EQ(written(plain, {{"user", "a", ""}}), "");
  EXPECT_EQ(written(plain, {}), "");
  EXPECT_EQ(
      written(plain, {{"user", "a", ""}, {"assistant", "b", ""}, {"user", "c", ""}, {"assistant", "", ""}}),
      "a\n[b</s>]");
}

TEST(ChatTemplate, ReadsTemplatesOfOnesOwn) {
  TextFolder folder;
  write_file(
      folder / "t",
      "# mine\nbegin: {bos}\\{\\\\\\}\nuser: Q: {content}\\n\r\n\nassistant:A: {content}{stop} {eos}\\t\n"
      "tool: T({content})\n");
  const text::ChatTemplate mine = text::ChatTemplate::load(folder / "t");
  EXPECT_EQ(
      written(mine, {{"user", "x", ""}, {"tool", "7", ""}, {"assistant", "y", ""}, {"assistant", "z", ""}}),
      "<s>{\\}Q: x\nT(7)A: [y] </s>\tA: [z]");
}

TEST(ChatTemplate, NamesEveryBrokenRule) {
  const std::string good = "user: {content}\nassistant: {content}\n";
  const auto error = [](const std::string& text) {
    return user_error_of([&] { text::ChatTemplate::parse("t", text); });
  };
  EXPECT_EQ(error(good), "");
  TE_EXPECT_CONTAINS(error("user {content}"), "t:1: is not `ROLE: text`");
  TE_EXPECT_CONTAINS(error(good + "user: {content}"), "t:3: a second line `user`");
  TE_EXPECT_CONTAINS(error("user: {content}"), "t: has no line `assistant:`");
  TE_EXPECT_CONTAINS(error(""), "t: has no line `user:`");
  TE_EXPECT_CONTAINS(error(good + "system: x"), "t:3: `system` must have one {content}");
  TE_EXPECT_CONTAINS(error(good + "system: {content}{content}"), "must have one {content}");
  TE_EXPECT_CONTAINS(error(good + "begin: {content}"), "`begin` must have no {content}");
  TE_EXPECT_CONTAINS(error(good + "system: {content}{stop}"), "{stop} is for assistant");
  TE_EXPECT_CONTAINS(error("user: {content}\nassistant: {stop}{content}"), "{stop} comes before {content}");
  TE_EXPECT_CONTAINS(error("user: {system}{content}\nassistant: {content}"), "there is no line `system:`");
  TE_EXPECT_CONTAINS(error(good + "user_with_context: {content}"), "has no {context}");
  TE_EXPECT_CONTAINS(error(good + "system: {content}\nuser_with_context: {system}{content}{context}"),
                     "in both of user and user_with_context");
  TE_EXPECT_CONTAINS(error("user: {content}\\x"), "t:1: `\\x` is no escape");
  TE_EXPECT_CONTAINS(error("user: {content}\\"), "is no escape");
  TE_EXPECT_CONTAINS(error("user: {content"), "t:1: a brace `{` without");
  TE_EXPECT_CONTAINS(error("user: {}"), "a brace `{` without a name");
  TE_EXPECT_CONTAINS(error("user: content}"), "a brace `}` without");
  TE_EXPECT_CONTAINS(error("trim: maybe"), "t:1: trim is true or false");
  TE_EXPECT_CONTAINS(user_error_of([] { text::ChatTemplate::load("none"); }),
                     "is no file, and not one of chatml, llama2, llama3, alpaca, plain");
  TE_EXPECT_CONTAINS(user_error_of([] {
                       written(text::ChatTemplate::load("chatml"), {{"tool", "x", ""}});
                     }),
                     "here:1: the role `tool` is not in the chat template chatml");
  TE_EXPECT_CONTAINS(
      user_error_of([] {
        written(text::ChatTemplate::load("llama2"), {{"system", "x", ""}, {"assistant", "y", ""}});
      }),
      "here:1: after a system message comes one of `assistant`");
}

TEST(Conversation, ReadsMessagesAndFields) {
  const auto read = [](const char* text, const text::ConversationFields& fields) {
    const nlohmann::json object = nlohmann::json::parse(text);
    std::string all;
    for (const text::Message& message : text::read_conversation({object, "f:1", 0}, fields)) {
      all +=
          message.role + "=" + message.content + (message.context.empty() ? "" : "|" + message.context) + ";";
    }
    return all;
  };
  const char* messages =
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "tool", "content": ""}]})";
  EXPECT_EQ(read(messages, {}), "user=a;tool=;");
  EXPECT_EQ(read(messages, {.system = "s"}), "system=s;user=a;tool=;");
  EXPECT_EQ(read(R"({"x": {"chat": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}})",
                 {.messages = "x.chat"}),
            "user=a;assistant=b;");
  EXPECT_EQ(read(R"({"messages": [{"role": "system", "content": "t"}]})", {.system = "s"}), "system=t;");
  const text::ConversationFields fields = {.prompt = "q", .response = "a", .context = "c"};
  EXPECT_EQ(read(R"({"q": "1", "a": "2", "c": "3"})", fields), "user=1|3;assistant=2;");
  EXPECT_EQ(read(R"({"q": "1", "a": "2"})", fields), "user=1;assistant=2;");

  const auto error = [&](const char* text, const text::ConversationFields& of = {}) {
    return user_error_of([&] { read(text, of); });
  };
  TE_EXPECT_CONTAINS(error(R"({"question": "x", "answer": "y"})"),
                     "f:1: has no list of messages in `messages`; name it with --messages-field, or give "
                     "--prompt-field and --response-field; this object has: answer, question");
  TE_EXPECT_CONTAINS(error(R"({"messages": ["x"]})"), "f:1: message 0 is no object");
  TE_EXPECT_CONTAINS(error(R"({"messages": [{"role": "user"}]})"), "f:1: message 0 has no `content`");
  TE_EXPECT_CONTAINS(error(R"({"messages": [{"role": 1, "content": "x"}]})"),
                     "message 0 has something else than a string as `role`");
  TE_EXPECT_CONTAINS(error(R"({"q": 1, "a": "x"})", fields), "field `q` is a number, not a string");
}

}  // namespace
}  // namespace te
