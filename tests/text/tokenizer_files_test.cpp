// Malformed tokenizer files are refused with a message of one line: truncated, wrong types, contradictory, missing.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/json.h"
#include "testing/files.h"
#include "testing/temporary_folder.h"
#include "text/tokenizer.h"

namespace te {
namespace {

using nlohmann::json;
using testing::read_file;
using testing::TextFolder;
using testing::user_error_of;
using testing::write_file;

class TokenizerFiles : public ::testing::Test {
 protected:
  const json good_ = parse_json(read_file(TE_SOURCE_DIR "/tests/fixtures/tokenizers/gpt2_style.json"));
  TextFolder folder_;

  std::string refusal(const std::string& text, const std::string& name = "tokenizer.json") {
    write_file(folder_ / name, text);
    const std::string message = user_error_of([&] { text::make_tokenizer(folder_ / name); });
    EXPECT_NE(message, "") << text.substr(0, 200);
    return message;
  }
  /// The error message for the valid file after a change.
  template <class Change>
  std::string changed(Change change) {
    json value = good_;
    change(value);
    return refusal(value.dump());
  }
};

TEST_F(TokenizerFiles, TruncatedAnywhere) {
  const std::string text = good_.dump();
  for (size_t length = 0; length < text.size(); length += 1 + text.size() / 150) {
    TE_EXPECT_CONTAINS(refusal(text.substr(0, length)), "not valid JSON");
  }
  TE_EXPECT_CONTAINS(refusal(R"({"version": 1e999})"), "a number exceeds the range of a double");
  std::string model = read_file(TE_SOURCE_DIR "/tests/fixtures/tokenizers/sentencepiece.model");
  TE_EXPECT_CONTAINS(refusal(model.substr(0, model.size() / 2), "tokenizer.model"), "SentencePiece");
  TE_EXPECT_CONTAINS(refusal("", "tokenizer.model"), "SentencePiece");
  TE_EXPECT_CONTAINS(refusal("IQ== 0\nIg== 1\n", "tokenizer.model"), "tiktoken");
}

TEST_F(TokenizerFiles, WrongTypes) {
  // Replace every member of the file by a number, a string, a list and null: refused or ignored, never a crash.
  for (const char* part : {"", "model", "pre_tokenizer", "decoder"}) {
    const json& object = *part == '\0' ? good_ : good_[part];
    for (const auto& [key, unused] : object.items()) {
      for (const json& value : {json(7), json("x"), json::array({1, "a"}), json(nullptr), json(-1.5)}) {
        json copy = good_;
        (*part == '\0' ? copy : copy[part])[key] = value;
        write_file(folder_ / "t.json", copy.dump());
        user_error_of([&] { text::make_tokenizer(folder_ / "t.json"); });
      }
    }
  }
  TE_EXPECT_CONTAINS(refusal("[]"), "must be an object");
  TE_EXPECT_CONTAINS(refusal("{}"), "`model` is missing");
  TE_EXPECT_CONTAINS(changed([](json& j) { j["model"]["vocab"] = 3; }), "model.vocab");
  TE_EXPECT_CONTAINS(changed([](json& j) { j["model"]["vocab"]["a"] = "b"; }), "must be an integer");
  TE_EXPECT_CONTAINS(changed([](json& j) { j["model"]["merges"] = "a b"; }), "model.merges");
  TE_EXPECT_CONTAINS(changed([](json& j) { j["model"]["merges"][1] = {"a", "b", "c"}; }), "model.merges[1]");
  TE_EXPECT_CONTAINS(changed([](json& j) { j["model"]["type"] = "Magic"; }),
                     "the model `Magic` is not supported");
  TE_EXPECT_CONTAINS(changed([](json& j) { j["pre_tokenizer"]["type"] = "Magic"; }), "Magic");
  TE_EXPECT_CONTAINS(changed([](json& j) { j["added_tokens"][0].erase("id"); }), "`id` is missing");
}

TEST_F(TokenizerFiles, Contradictions) {
  TE_EXPECT_CONTAINS(changed([](json& j) {
                       j["model"]["merges"].push_back({"zz\u00e4", "a"});
                     }),
                     "which the vocabulary lacks");
  TE_EXPECT_CONTAINS(changed([](json& j) { j["model"]["vocab"]["a"] = j["model"]["vocab"]["b"]; }),
                     "have the same id");
  TE_EXPECT_CONTAINS(changed([](json& j) { j["model"]["vocab"]["a"] = -1; }), "has id -1");
  TE_EXPECT_CONTAINS(changed([](json& j) { j["model"]["vocab"]["a"] = 4000000000; }), "has id 4000000000");
  TE_EXPECT_CONTAINS(changed([](json& j) { j["added_tokens"][0]["id"] = 5; }), "ids must agree");
  TE_EXPECT_CONTAINS(changed([](json& j) { j["added_tokens"].push_back(j["added_tokens"][0]); }),
                     "is a duplicate by content or id");
  TE_EXPECT_CONTAINS(changed([](json& j) { j["model"]["unk_token"] = "nope"; }), "unk_token");
  TE_EXPECT_CONTAINS(
      changed([](json& j) {
        j["pre_tokenizer"] = {
            {"type", "Split"}, {"pattern", {{"Regex", "(a"}}}, {"behavior", "Isolated"}, {"invert", false}};
      }),
      "regular expression");
}

// Three steps that each expand one character to a thousand would need a gigabyte; the limit applies before allocation.
TEST_F(TokenizerFiles, ReplacementsAreLimitedBeforeAllocation) {
  const json grows = {
      {"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(1000, 'a')}};
  json regex = grows;
  regex["pattern"] = {{"Regex", "[a]"}};
  const auto expect_bounded = [&](const char* part, const json& value, auto use) {
    json changed = good_;
    changed[part] = value;
    write_file(folder_ / "tokenizer.json", changed.dump());
    const pid_t child = ::fork();
    if (child == 0) {
      const std::string message =
          user_error_of([&] { use(*text::make_tokenizer(folder_ / "tokenizer.json")); });
      ::_exit(message.find(std::string("the tokenizer's ") + part + " expands a part of a text") == 0 ? 0
                                                                                                      : 1);
    }
    int status = -1;
    struct rusage usage = {};
    ::wait4(child, &status, 0, &usage);
    EXPECT_EQ(status, 0) << part;
    EXPECT_LT(usage.ru_maxrss, 400 << 10) << "KiB for " << part;
  };
  std::vector<int32_t> tokens;
  const auto encode = [&](const text::Tokenizer& tokenizer) { tokenizer.encode("b a", tokens); };
  const auto decode = [](const text::Tokenizer& tokenizer) {
    const std::vector<int32_t> token = {*tokenizer.find_token("a")};
    tokenizer.decode(token);
  };
  for (const json& step : {grows, regex}) {
    expect_bounded("normalizer", {{"type", "Sequence"}, {"normalizers", {step, step, step}}}, encode);
    expect_bounded("decoder", {{"type", "Sequence"}, {"decoders", {step, step, step}}}, decode);
  }
}

TEST_F(TokenizerFiles, Missing) {
  TE_EXPECT_CONTAINS(user_error_of([&] { text::make_tokenizer(folder_ / "none.json"); }),
                     "no such file or folder");
  TE_EXPECT_CONTAINS(user_error_of([&] { text::make_tokenizer(folder_ / ""); }),
                     "the folder contains no tokenizer");
  TE_EXPECT_CONTAINS(refusal("{}", "vocab.json"), "merges.txt is missing");
  write_file(folder_ / "merges.txt", "#version: 0.2\na b\n");
  TE_EXPECT_CONTAINS(refusal(R"({"a": 0, "b": 1})", "vocab.json"), "needs token `ab`");
  write_file(folder_ / "merges.txt", "#version: 0.2\na b c\n");
  TE_EXPECT_CONTAINS(refusal(R"({"a": 0, "b": 1})", "vocab.json"), "line 2 of the merges");
  TE_EXPECT_CONTAINS(refusal("abc", "x.txt"), "unknown kind of file");
}

}  // namespace
}  // namespace te
