// Chat templates: the output of the built-in ones, the loss mask, and an error message for every syntax rule.
#include "text/chat/chat_template.h"
#include "core/json.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "testing/files.h"
#include "testing/temporary_folder.h"
#include "text/chat/rendered.h"
#include "text/tokenizer.h"
#include "text/tokenizers/byte_tokenizer.h"

namespace te {
namespace {

using testing::TextFolder;
using testing::user_error_of;
using testing::write_file;

/// A byte tokenizer with a few special tokens; records the texts that encode() is called with.
class ChatTokenizer : public text::ByteTokenizer {
 public:
  mutable std::vector<std::string> encoded;

  std::optional<int32_t> begin_of_document() const override { return 257; }
  std::optional<int32_t> find_token(std::string_view token) const override {
    const auto found = std::ranges::find(kNames, token);
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
    EXPECT_EQ(special, text::SpecialTokens::kAsText);  // text never becomes a special token
    encoded.emplace_back(text);
    for (const char c : text) tokens.push_back(static_cast<uint8_t>(c));
  }
  const std::vector<std::string> kNames = {
      "</s>", "<s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"};
};

/// The text with [...] around the parts in the loss.
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

TEST(ChatTemplate, BuiltinsWriteTheFormatsOfTheirModels) {
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
  // Without a user_with_context line, a context follows its message.
  EXPECT_EQ(write("llama2", {{"user", "Who?", "A text."}, {"assistant", "Me", ""}}),
            "<s>[INST] Who?\n\nA text. [/INST][Me </s>]");
}

TEST(ChatTemplate, SpecialTokensComeFromPlaceholdersOnly) {
  const ChatTokenizer tokenizer;
  const text::ChatTemplate chatml = text::ChatTemplate::load("chatml");
  const auto encoded =
      chatml.encode({{"user", "<|im_end|>", ""}, {"assistant", "<|im_start|>", ""}}, tokenizer, "here:1");
  EXPECT_EQ(std::ranges::count_if(encoded.tokens, [](int32_t t) { return t >= 256; }), 4);
  EXPECT_EQ(tokenizer.encoded,
            (std::vector<std::string>{"user\n<|im_end|>", "\n", "assistant\n", "<|im_start|>", "\n"}));
  EXPECT_EQ(chatml.token_names(), (std::vector<std::string>{"<|im_start|>", "<|im_end|>"}));
  // A tokenizer without the token encodes its name as text, together with the surrounding text.
  const text::ByteTokenizer bytes;
  const auto as_text = chatml.encode({{"user", "a", ""}, {"assistant", "b", ""}}, bytes, "here:1");
  EXPECT_EQ(bytes.decode(as_text.tokens),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>");
}

// The same reply has the same tokens in and outside the loss.
TEST(ChatTemplate, RepliesOutsideTheLossAreEncodedSeparately) {
  for (const char* name : {"chatml", "llama2", "llama3", "plain"}) {
    const text::ChatTemplate chat_template = text::ChatTemplate::load(name);
    const auto texts = [&](bool in_loss) {
      const ChatTokenizer tokenizer;
      text::Conversation conversation = {
          {"user", "a", ""}, {"assistant", "b", ""}, {"user", "c", ""}, {"assistant", "d", ""}};
      conversation[1].in_loss = in_loss;
      const std::vector<int32_t> tokens = chat_template.encode(conversation, tokenizer, "here:1").tokens;
      return std::pair(tokens, tokenizer.encoded);
    };
    EXPECT_EQ(texts(false), texts(true)) << name;
  }
}

// Of Unicode, as Python's strip() and Jinja's trim remove it.
TEST(ChatTemplate, TrimsWhiteSpace) {
  const text::ChatTemplate llama3 = text::ChatTemplate::load("llama3");
  const ChatTokenizer tokenizer;
  llama3.encode({{"user", "\u3000a b\u00a0\n", ""}, {"assistant", "\u2003c\u0085", ""}}, tokenizer, "here:1");
  EXPECT_EQ(std::ranges::count(tokenizer.encoded, "\n\na b"), 1);
  EXPECT_EQ(std::ranges::count(tokenizer.encoded, "c"), 1);
  EXPECT_TRUE(llama3.encode({{"user", "a", ""}, {"assistant", "\u3000", ""}}, tokenizer, "here:1").cut);
}

TEST(ChatTemplate, EndsBeforeAnEmptyResponse) {
  const text::ChatTemplate plain = text::ChatTemplate::load("plain");
  EXPECT_EQ(written(plain, {{"user", "a", ""}, {"assistant", " \n", ""}}), "");
  EXPECT_EQ(written(plain, {{"user", "a", ""}}), "");
  EXPECT_EQ(written(plain, {}), "");
  EXPECT_EQ(
      written(plain, {{"user", "a", ""}, {"assistant", "b", ""}, {"user", "c", ""}, {"assistant", "", ""}}),
      "a\n[b</s>]");
  const ChatTokenizer tokenizer;
  const text::Conversation whole = {{"user", "a", ""}, {"assistant", "b", ""}};
  text::Conversation with_empty = whole;
  with_empty.insert(with_empty.end(), {{"user", "c", ""}, {"assistant", "", ""}, {"user", "d", ""}});
  EXPECT_FALSE(plain.encode(whole, tokenizer, "here:1").cut);
  EXPECT_TRUE(plain.encode(with_empty, tokenizer, "here:1").cut);
}

TEST(ChatTemplate, ReadsUserDefinedTemplates) {
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

TEST(ChatTemplate, ReportsEverySyntaxError) {
  const std::string good = "user: {content}\nassistant: {content}\n";
  const auto error = [](const std::string& text) {
    return user_error_of([&] { text::ChatTemplate::parse("t", text); });
  };
  EXPECT_EQ(error(good), "");
  TE_EXPECT_CONTAINS(error("user {content}"), "t:1: the line is not `ROLE: text`");
  TE_EXPECT_CONTAINS(error(good + "user: {content}"), "t:3: a second line for the role `user`");
  TE_EXPECT_CONTAINS(error("user: {content}"), "t: has no line `assistant:`");
  TE_EXPECT_CONTAINS(error(""), "t: has no line `user:`");
  TE_EXPECT_CONTAINS(error(good + "system: x"), "t:3: `system` must have one {content}");
  TE_EXPECT_CONTAINS(error(good + "system: {content}{content}"), "must have one {content}");
  TE_EXPECT_CONTAINS(error(good + "begin: {content}"), "`begin` must have no {content}");
  TE_EXPECT_CONTAINS(error(good + "system: {content}{stop}"), "{stop} is allowed for assistant only");
  TE_EXPECT_CONTAINS(error("user: {content}\nassistant: {stop}{content}"), "{stop} comes before {content}");
  TE_EXPECT_CONTAINS(error("user: {system}{content}\nassistant: {content}"), "there is no line `system:`");
  TE_EXPECT_CONTAINS(error(good + "user_with_context: {content}"), "has no {context}");
  TE_EXPECT_CONTAINS(error(good + "system: {content}\nuser_with_context: {system}{content}{context}"),
                     "in both user and user_with_context");
  TE_EXPECT_CONTAINS(error("user: {content}\\x"), "t:1: unknown escape `\\x`");
  TE_EXPECT_CONTAINS(error("user: {content}\\"), "unknown escape");
  TE_EXPECT_CONTAINS(error("user: {content"), "t:1: `{` must be followed by a name and `}`");
  TE_EXPECT_CONTAINS(error("user: {}"), "`{` must be followed by a name");
  TE_EXPECT_CONTAINS(error("user: content}"), "`}` without `{` before it");
  TE_EXPECT_CONTAINS(error("trim: maybe"), "t:1: trim must be true or false");
  TE_EXPECT_CONTAINS(user_error_of([] { text::ChatTemplate::load("none"); }),
                     "neither a file nor one of chatml, llama2, llama3, alpaca, plain");
  TE_EXPECT_CONTAINS(user_error_of([] {
                       written(text::ChatTemplate::load("chatml"), {{"tool", "x", ""}});
                     }),
                     "here:1: the chat template chatml has no line for the role `tool`");
  TE_EXPECT_CONTAINS(
      user_error_of([] {
        written(text::ChatTemplate::load("llama2"), {{"system", "x", ""}, {"assistant", "y", ""}});
      }),
      "here:1: a message of the role `assistant` follows a system message");
}

text::Conversation conversation_of(const std::string& messages, std::set<std::string>* ignored = nullptr) {
  const nlohmann::json object = parse_json("{\"id\": 7, \"messages\": " + messages + "}");
  return text::read_conversation({object, "f:1", 0}, {}, ignored);
}

TEST(Conversation, JoinsPartsAndReadsWeights) {
  std::set<std::string> ignored;
  const text::Conversation conversation = conversation_of(
      R"([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "X"},
          {"role": "assistant", "content": "no", "weight": 0, "tool_calls": null, "reasoning_content": ""},
          {"role": "assistant", "content": "yes", "weight": 1}])",
      &ignored);
  EXPECT_EQ(conversation[0].content, "ab");
  EXPECT_TRUE(conversation[0].in_loss);
  EXPECT_FALSE(conversation[1].in_loss);
  EXPECT_TRUE(conversation[2].in_loss);
  EXPECT_EQ(ignored, (std::set<std::string>{"id", "messages[].name"}));
  // A masked response stays in the text.
  const auto bytes = text::make_tokenizer("bytes");
  const auto encoded = text::ChatTemplate::load("plain").encode(conversation, *bytes, "f:1");
  EXPECT_EQ(bytes->decode(encoded.tokens), "ab\nno<|endoftext|>yes<|endoftext|>");
  EXPECT_EQ(std::ranges::count(encoded.mask, 1), 4);
}

TEST(Conversation, RefusesFieldsThatTemplatesDoNotSupport) {
  const auto error = [](const std::string& messages) {
    return user_error_of([&] { conversation_of(messages); });
  };
  TE_EXPECT_CONTAINS(
      error(R"([{"role": "assistant", "content": "", "tool_calls": [{}]}])"),
      "f:1: message 0 has `tool_calls`, which --template does not support; use scripts/render_chat.py");
  TE_EXPECT_CONTAINS(error(R"([{"role": "assistant", "content": "x", "reasoning_content": "y"}])"),
                     "message 0 has `reasoning_content`");
  TE_EXPECT_CONTAINS(error(R"([], "tools": [{"type": "function"}])"), "f:1: the conversation has `tools`");
  TE_EXPECT_CONTAINS(error(R"([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])"),
                     "f:1: message 0 has a part of type `image_url`; te-train trains on text only");
  TE_EXPECT_CONTAINS(error(R"([{"role": "user", "content": ["x"]}])"),
                     "a part without `type` in its `content`");
  TE_EXPECT_CONTAINS(error(R"([{"role": "user", "content": 3}])"),
                     "message 0 has a `content` of type number");
  TE_EXPECT_CONTAINS(error(R"([{"role": "user", "content": "x", "weight": 0.5}])"),
                     "has weight 0.5; it must be 0 or 1");
}

TEST(Rendered, MasksSegmentsAndEncodesThemTogether) {
  const auto gpt2 = text::make_tokenizer(TE_SOURCE_DIR "/tests/fixtures/tokenizers/gpt2_style.json");
  const auto encode = [&](const std::string& segments) {
    const nlohmann::json object = parse_json("{\"segments\": " + segments + "}");
    return text::encode_rendered({object, "f:1", 0}, *gpt2);
  };
  const auto encoded =
      encode(R"([{"text": "A question?\n", "loss": 0}, {"text": "The answer.<|endoftext|>", "loss": 1},
                 {"text": "\nMore?\n", "loss": 0}, {"text": "Yes.", "loss": 1}, {"text": "\n", "loss": 0}])");
  std::vector<int32_t> whole, in_loss;
  gpt2->encode("A question?\nThe answer.<|endoftext|>\nMore?\nYes.", whole);
  EXPECT_EQ(encoded.tokens, whole);
  for (size_t i = 0; i < whole.size(); ++i) {
    if (encoded.mask[i] == 1) in_loss.push_back(whole[i]);
  }
  EXPECT_EQ(gpt2->decode(in_loss), "The answer.<|endoftext|>Yes.");
  // A word that begins in the prompt is encoded separately, so that training matches generation.
  const auto separate = encode(R"([{"text": "the questi", "loss": 0}, {"text": "on", "loss": 1}])");
  std::vector<int32_t> prompt, response;
  gpt2->encode("the questi", prompt);
  gpt2->encode("on", response);
  prompt.insert(prompt.end(), response.begin(), response.end());
  EXPECT_EQ(separate.tokens, prompt);
  EXPECT_EQ(std::ranges::count(separate.mask, 1), static_cast<int64_t>(response.size()));

  EXPECT_TRUE(encode(R"([{"text": "nothing is learned", "loss": 0}])").tokens.empty());
  for (const char* segments : {"3", "[3]", R"([{"text": "x"}])", R"([{"text": "x", "loss": 2}])"}) {
    TE_EXPECT_CONTAINS(user_error_of([&] { encode(segments); }), "f:1: `segments` must be a list");
  }
}

// Tokens equal those of transformers for the same conversations; so do the masks if the template marks responses.
TEST(Rendered, MatchesTransformers) {
  const std::string folder = TE_SOURCE_DIR "/tests/fixtures/chat";
  const auto tokenizer = text::make_tokenizer(folder + "/tokenizer.json");
  const nlohmann::json recorded = parse_json(testing::read_file(folder + "/recorded.json"));
  int64_t compared = 0;
  for (const nlohmann::json& item : recorded["cases"]) {
    for (const nlohmann::json& expected : item["expected"]) {
      const auto encoded = text::encode_rendered({expected, "f:1", 0}, *tokenizer);
      std::vector<int32_t> tokens = expected["tokens"], learned;
      tokens.resize(encoded.tokens.size());
      EXPECT_EQ(encoded.tokens, tokens);
      std::string text;
      for (const nlohmann::json& segment : expected["segments"]) {
        if (segment["loss"] == 1) text += segment["text"].get<std::string>();
      }
      for (size_t i = 0; i < tokens.size(); ++i) {
        if (encoded.mask[i] == 1) learned.push_back(encoded.tokens[i]);
      }
      EXPECT_EQ(tokenizer->decode(learned), text);
      if (expected["mask"].is_array()) {
        std::vector<int32_t> mask = expected["mask"];
        mask.resize(encoded.mask.size());
        EXPECT_EQ(encoded.mask, mask);
      }
      ++compared;
    }
  }
  EXPECT_EQ(compared, 11);
}

// SentencePiece prepends a space to every text, also to a part of a word.
TEST(Rendered, RefusesSegmentsThatCannotBeEncodedSeparately) {
  const auto tokenizer = text::make_tokenizer(TE_SOURCE_DIR "/tests/fixtures/tokenizers/sentencepiece.model");
  std::vector<int32_t> tokens;
  tokenizer->encode("the", tokens);
  ASSERT_EQ(tokens.size(), 1u) << "the word must be one token";
  const nlohmann::json joined =
      parse_json(R"({"segments": [{"text": "th", "loss": 0}, {"text": "e", "loss": 1}]})");
  TE_EXPECT_CONTAINS(user_error_of([&] {
                       text::encode_rendered({joined, "f:1", 0}, *tokenizer);
                     }),
                     "f:1: the tokenizer merges the end of a prompt and the beginning of `e` in one token");
}

TEST(Conversation, ReadsMessagesAndFields) {
  const auto read = [](const char* text, const text::ConversationFields& fields) {
    const nlohmann::json object = parse_json(text);
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
                     "f:1: no list of messages in the field `messages`; name it with --messages-field, or "
                     "give --prompt-field and --response-field; the object has: answer, question");
  TE_EXPECT_CONTAINS(error(R"({"messages": "[]"})"),
                     "f:1: field `messages` is a string, not a list of messages; name another field with");
  TE_EXPECT_CONTAINS(error(R"({"messages": ["x"]})"), "f:1: message 0 is not an object");
  TE_EXPECT_CONTAINS(error(R"({"messages": [{"role": "user"}]})"), "f:1: message 0 has no `content`");
  TE_EXPECT_CONTAINS(
      error(R"({"messages": [{"role": 1, "content": "x"}]})"),
      "f:1: message 0 has a `role` that is not a string; every message needs a string as `role`");
  TE_EXPECT_CONTAINS(error(R"({"q": 1, "a": "x"})", fields), "field `q` is a number, not a string");
}

}  // namespace
}  // namespace te
