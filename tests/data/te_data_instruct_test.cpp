// te-data instruct end to end, and the other subcommands with its output.
#include "data/loss_mask.h"
#include "data/sampler.h"
#include "te_data_testing.h"

namespace te {
namespace {

using testing::byte_document;
using testing::Documents;
using testing::expect_no_dataset;
using testing::expect_refused;
using testing::read_dataset;
using testing::Result;
using testing::run_te_data;
using testing::TextFolder;
using testing::write_file;

std::vector<int32_t> mask_of(int64_t prompt, int64_t response) {
  std::vector<int32_t> mask(static_cast<size_t>(prompt + response), 1);
  std::fill_n(mask.begin(), prompt, 0);
  return mask;
}

TEST(TeDataInstruct, CreatesTokensAndMaskFromFields) {
  TextFolder folder;
  write_file(folder / "a.json", R"([{"q": "two\n", "c": "", "a": "2"}, {"q": "x", "c": "why", "a": " "},
                                    {"q": "x?", "c": "x is 3", "a": "3!"}])");
  const std::string call =
      "instruct --tokenizer bytes --template plain --prompt-field q --response-field a "
      "--context-field c --input " +
      (folder / "a.json") + " --output ";
  Result result = run_te_data(folder, call + (folder / "out") + " --seq-length 8");
  EXPECT_EQ(result.code, 0) << result.error;
  const Documents tokens = {byte_document("two\n2"), byte_document("x is 3\n\nx?\n3!")};
  const Documents masks = {mask_of(4, 2), mask_of(11, 3)};
  EXPECT_EQ(read_dataset(folder / "out"), tokens);
  EXPECT_EQ(read_dataset(folder / "out_mask"), masks);
  TE_EXPECT_CONTAINS(result.out,
                     "out: 2 conversations, 20 tokens as u16, 5 of them (25.0%) in the loss, longest 14");
  TE_EXPECT_CONTAINS(result.out, "packed into 2 samples of 8: 81.2% filled, 1 conversations longer than 9");
  TE_EXPECT_CONTAINS(result.out, "1 objects without a response skipped");

  result = run_te_data(folder, "inspect --tokenizer bytes --samples 9 " + (folder / "out"));
  TE_EXPECT_CONTAINS(result.out, "loss mask: 5 of 20 tokens (25.0%) are in the loss");
  TE_EXPECT_CONTAINS(result.out, "document 0 (6 tokens): two\\n[[2<|endoftext|>]]\n");

  result = run_te_data(folder,
                       "merge --output " + (folder / "m") + " " + (folder / "out") + " " + (folder / "out"));
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_EQ(read_dataset(folder / "m_mask"), (Documents{masks[0], masks[1], masks[0], masks[1]}));
  result = run_te_data(folder, "verify --tokenizer bytes " + (folder / "m"));
  EXPECT_EQ(result.code, 0) << result.error;
  TE_EXPECT_CONTAINS(result.out, "m_mask: ok, 10 of 40 tokens in the loss, crc32 bin");
  EXPECT_EQ(data::make_instruction_source({{1.0, folder / "m"}}, {.seq_length = 32, .vocab_size = 257})
                ->describe()
                .substr((folder / "m").size()),
            " (1 dataset): 40 tokens, 4 documents, 2 samples per epoch, shuffled; 56.2% filled");

  testing::write_dataset(folder / "plain", {{1}});
  expect_refused(run_te_data(folder, "merge --output " + (folder / "n") + " " + (folder / "out") + " " +
                                         (folder / "plain")),
                 "plain: has no loss mask, unlike");
  expect_no_dataset(folder / "n");
  expect_no_dataset(folder / "n_mask");
  // A dataset of text with this prefix would not match the existing mask.
  write_file(folder / "t.txt", "text");
  expect_refused(run_te_data(folder, "tokenize --tokenizer bytes --input " + (folder / "t.txt") +
                                         " --output " + (folder / "out")),
                 "out_mask.idx: loss mask of an existing dataset with this prefix");
  EXPECT_EQ(read_dataset(folder / "out"), tokens);
}

TEST(TeDataInstruct, VerifyChecksTheMaskFirst) {
  TextFolder folder;
  testing::write_dataset(folder / "a", {{1, 2, 3}});
  testing::write_dataset(folder / "a_mask", {{0, 2, 1}}, data::TokenType::kU8);
  expect_refused(run_te_data(folder, "verify " + (folder / "a")), "a_mask.bin: value 1 of document 0 is 2");
}

TEST(TeDataInstruct, ConversationsCutAtAnEmptyResponseAreCounted) {
  TextFolder folder;
  write_file(folder / "a.jsonl",
             R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},)"
             R"( {"role": "user", "content": "c"}, {"role": "assistant", "content": ""}]})"
             "\n");
  const Result result = run_te_data(folder, "instruct --tokenizer bytes --template plain --input " +
                                                (folder / "a.jsonl") + " --output " + (folder / "out"));
  EXPECT_EQ(result.code, 0) << result.error;
  TE_EXPECT_CONTAINS(result.out, "1 conversations cut at an empty response");
}

TEST(TeDataInstruct, SplitsMessagesAndReadsTemplateFiles) {
  TextFolder folder;
  std::string lines;
  for (int i = 0; i < 20; ++i) {
    lines += R"({"messages": [{"role": "user", "content": "q)" + std::to_string(i) +
             R"("}, {"role": "assistant", "content": "a"}]})"
             "\n";
  }
  write_file(folder / "a.jsonl", lines);
  write_file(folder / "my.txt",
             "user: {content} \nassistant: {content}{<|endoftext|>}\nsystem: {content}/\n");
  const Result result =
      run_te_data(folder, "instruct --tokenizer bytes --system S --template " + (folder / "my.txt") +
                              " --input - --output " + (folder / "t") + " --valid-output " + (folder / "v") +
                              " --valid-fraction 0.1 <" + (folder / "a.jsonl"));
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_EQ(result.error, "");
  EXPECT_EQ(read_dataset(folder / "t").size(), 18u);
  EXPECT_EQ(read_dataset(folder / "v"), (Documents{byte_document("S/q4 a"), byte_document("S/q14 a")}));
  EXPECT_EQ(read_dataset(folder / "v_mask"), (Documents{mask_of(5, 2), mask_of(6, 2)}));
}

TEST(TeDataInstruct, PackingLeavesOutConversationsOfOneToken) {
  TextFolder folder;
  write_file(folder / "own.txt", "user: {content}\nassistant: {content}\n");
  write_file(folder / "a.jsonl", "{\"q\": \"\", \"a\": \"A\"}\n{\"q\": \"q\", \"a\": \"B\"}\n");
  const std::string call =
      "instruct --force --tokenizer bytes --prompt-field q --response-field a --template " +
      (folder / "own.txt") + " --seq-length 8 --input " + (folder / "a.jsonl") + " --output " +
      (folder / "t");
  Result result = run_te_data(folder, call);
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_EQ(read_dataset(folder / "t"), (Documents{{'A'}, {'q', 'B'}}));
  TE_EXPECT_CONTAINS(result.out, "packed into 1 samples of 8: 12.5% filled");

  result = run_te_data(folder, call + " --valid-fraction 0.5 --valid-output " + (folder / "v"));
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_EQ(read_dataset(folder / "v"), Documents{{'A'}});
  EXPECT_EQ(read_dataset(folder / "t"), (Documents{{'q', 'B'}}));
  TE_EXPECT_CONTAINS(result.out, "packed into 0 samples of 8: 0.0% filled");
}

TEST(TeDataInstruct, RefusesBadInputInOneLineAndLeavesNoFile) {
  TextFolder folder;
  const auto instruct = [&](const std::string& bytes, const std::string& more, const char* name = "a.jsonl") {
    write_file(folder / name, bytes);
    return run_te_data(folder, "instruct --tokenizer bytes --output " + (folder / "out") + " --input " +
                                   (folder / name) + " " + more);
  };
  const std::string good = "{\"q\": \"x\", \"a\": \"y\"}\n", fields = "--prompt-field q --response-field a ";
  expect_refused(instruct(good, "--template plain"), "a.jsonl:1: no list of messages");
  expect_refused(instruct(good, fields), "--template");
  expect_refused(instruct(good, fields + "--template none"), "chat template `none`");
  expect_refused(instruct(good, "--template plain --prompt-field q"), "give both or neither");
  expect_refused(instruct(good, "--template plain --context-field q"),
                 "--context-field needs --prompt-field and --response-field");
  expect_refused(instruct("\n{\"q\": \"x\", \"a\": \"\"}\n", fields + "--template plain"),
                 "no conversation with a response in 1 file (1 without)");
  expect_refused(instruct(good + "[]\n", fields + "--template plain"), "a.jsonl:2: found a JSON array");
  expect_refused(instruct(good + "x", fields + "--template plain", "a.json"),
                 "a.json:2: found `x` instead of");
  expect_no_dataset(folder / "out");
  expect_no_dataset(folder / "out_mask");
}

TEST(TeDataInstruct, WarnsAboutMissingTokens) {
  TextFolder folder;
  write_file(folder / "a.jsonl", "{\"q\": \"x\", \"a\": \"y\"}\n");
  const Result result = run_te_data(
      folder, "instruct --tokenizer bytes --template chatml --prompt-field q --response-field a --output " +
                  (folder / "out") + " --input " + (folder / "a.jsonl"));
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_EQ(
      result.error,
      "te-data: warning: the tokenizer bytes has no token <|im_start|>, <|im_end|>: it is encoded as text\n");
}

}  // namespace
}  // namespace te
