// te-data end to end with the executable: its files, its output, and its error messages.
#include "te_data_testing.h"

namespace te {
namespace {

using testing::byte_document;
using testing::Documents;
using testing::expect_refused;
using testing::read_dataset;
using testing::Result;
using testing::run_te_data;
using testing::TextFolder;
using testing::write_file;

TEST(TeData, TokenizesTextWithSeparators) {
  TextFolder folder;
  write_file(folder / "a.txt",
             "one\ntwo\n<|endoftext|>\n<|endoftext|>\r\nthr\xc3\xa9"
             "e <|endoftext|> x\n<|endoftext|>");
  const Result result =
      run_te_data(folder, "tokenize --input " + (folder / "a.txt") + " --output " + (folder / "out/a") +
                              " --tokenizer bytes --document-separator '<|endoftext|>'");
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_EQ(read_dataset(folder / "out/a"),
            (Documents{byte_document("one\ntwo\n"), byte_document("thr\xc3\xa9"
                                                                  "e <|endoftext|> x\n")}));
  TE_EXPECT_CONTAINS(result.out, "2 documents, 33 tokens, 66 bytes as u16");
}

TEST(TeData, TokenizesFoldersStandardInputAndJsonl) {
  TextFolder folder;
  std::filesystem::create_directories(folder / "in/sub/.hidden");
  write_file(folder / "in/b.txt", "second");
  write_file(folder / "in/a.md", "first");
  write_file(folder / "in/sub/c.jsonl",
             "{\"text\": \"third \\u00e9\", \"id\": 1}\n\n{\"text\": \"\"}\n{\"text\":\"fourth\"}");
  write_file(folder / "in/sub/.hidden/x.txt", "no");
  write_file(folder / "in/picture.png", std::string("\x89PNG\0\0", 6));
  write_file(folder / "stdin.jsonl", "{\"body\": \"fifth\"}\n");
  Result result = run_te_data(
      folder, "tokenize --input " + (folder / "in") + " --output " + (folder / "a") + " --tokenizer bytes");
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_EQ(read_dataset(folder / "a"),
            (Documents{byte_document("first"), byte_document("second"), byte_document("third \xc3\xa9"),
                       byte_document("fourth")}));
  TE_EXPECT_CONTAINS(result.out, "3 files (1 binary files skipped)");

  result = run_te_data(folder, "tokenize --input - --format jsonl --jsonl-field body --output " +
                                   (folder / "b") + " --tokenizer bytes <" + (folder / "stdin.jsonl"));
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_EQ(read_dataset(folder / "b"), (Documents{byte_document("fifth")}));
}

TEST(TeData, ReadsJsonLinesUnderAnyName) {
  TextFolder folder;
  const std::string lines = "{\"text\": \"one\", \"id\": 1}\n{\"text\": \"two\"}\n";
  const Documents expected = {byte_document("one"), byte_document("two")};
  int number = 0;
  const auto tokenize = [&](const std::string& input, const std::string& before = "") {
    return run_te_data(folder,
                       "tokenize --tokenizer bytes --input " + input + " --output " +
                           (folder / ("out" + std::to_string(++number))),
                       before);
  };
  const auto made = [&] { return read_dataset(folder / ("out" + std::to_string(number))); };
  for (const char* name : {"a.JSONL", "a.jsonlines", "a.NdJson", "b.JSON"}) {
    write_file(folder / name, lines);
    EXPECT_EQ(tokenize(folder / name).error, "") << name;
    EXPECT_EQ(made(), expected) << name;
  }
  write_file(folder / "part-00000", lines);
  const std::string by_content =
      ": read as JSON lines because of its content; --format text reads it as text\n";
  EXPECT_EQ(tokenize(folder / "part-00000").error,
            "te-data: warning: " + (folder / "part-00000") + by_content);
  EXPECT_EQ(made(), expected);
  EXPECT_EQ(tokenize("-", "cat " + (folder / "part-00000") + " | ").error,
            "te-data: warning: (standard input)" + by_content);
  EXPECT_EQ(made(), expected);
  const Result text = tokenize((folder / "part-00000") + " --format text");
  EXPECT_EQ(text.error, "");
  EXPECT_EQ(made(), Documents{byte_document(lines)});
  write_file(folder / "list", "[\n" + lines.substr(0, lines.find('\n')) + "]");
  TE_EXPECT_CONTAINS(tokenize(folder / "list").error, "list: read as JSON objects because of its content");
  EXPECT_EQ(made(), Documents{byte_document("one")});
  // Another field: the error lists the existing fields.
  write_file(folder / "part-00001", "{\"body\": \"one\"}\n{\"body\": \"two\"}\n");
  const Result other = tokenize(folder / "part-00001");
  EXPECT_EQ(other.code, 2);
  TE_EXPECT_CONTAINS(other.error, "part-00001:1: no field `text`; name the field with --jsonl-field");
  // The name means text, or the content is other JSON: read as text, with a warning.
  write_file(folder / "a.txt", lines);
  TE_EXPECT_CONTAINS(tokenize(folder / "a.txt").error,
                     "a.txt: read as text, although it begins with JSON objects");
  EXPECT_EQ(made(), Documents{byte_document(lines)});
  write_file(folder / "Pipfile.lock", "{\n  \"default\": {}\n}\n");
  TE_EXPECT_CONTAINS(
      tokenize(folder / "Pipfile.lock").error,
      "Pipfile.lock: read as text, although it begins with a JSON object (without a field `text`)");
}

TEST(TeData, SplitsAValidationSetAndInspectsIt) {
  TextFolder folder;
  std::string text;
  for (int i = 0; i < 40; ++i) text += "document " + std::to_string(i) + "\n---\n";
  write_file(folder / "a.txt", text);
  Result result = run_te_data(
      folder, "tokenize --input " + (folder / "a.txt") + " --output " + (folder / "train") +
                  " --tokenizer bytes --document-separator=--- --valid-fraction 0.1 --valid-output " +
                  (folder / "valid"));
  EXPECT_EQ(result.code, 0) << result.error;
  const Documents train = read_dataset(folder / "train"), valid = read_dataset(folder / "valid");
  EXPECT_EQ(train.size(), 36u);
  EXPECT_EQ(valid, (Documents{byte_document("document 4\n"), byte_document("document 14\n"),
                              byte_document("document 24\n"), byte_document("document 34\n")}));

  result = run_te_data(folder, "inspect " + (folder / "valid") + " --tokenizer bytes --samples 2 --scan");
  EXPECT_EQ(result.code, 0) << result.error;
  TE_EXPECT_CONTAINS(result.out, "4 documents, 4 sequences, 51 tokens, 102 bytes as u16");
  TE_EXPECT_CONTAINS(result.out, "min 12, median 13, mean 12.8, max 13");
  TE_EXPECT_CONTAINS(result.out, ">=            8            4  ########################################\n");
  TE_EXPECT_CONTAINS(result.out, "largest token 256, 15 distinct tokens");
  TE_EXPECT_CONTAINS(result.out, "document 2 (13 tokens): document 24\\n<|endoftext|>\n");
}

TEST(TeData, RefusesBadInputInOneLineAndLeavesNoFile) {
  TextFolder folder;
  const std::string to = " --tokenizer bytes --output " + (folder / "out");
  const auto tokenize = [&](const std::string& name, const std::string& bytes, const std::string& more = "") {
    write_file(folder / name, bytes);
    return run_te_data(folder, "tokenize --input " + (folder / name) + to + more);
  };
  expect_refused(tokenize("a.jsonl", "{\"text\": \"x\"}\n{\"text\": \"y\"\n"),
                 "a.jsonl:2: not valid JSON at byte");
  expect_refused(tokenize("a.jsonl", "{\"text\": \"\xff\"}\n"), "a.jsonl:1: not valid JSON at byte");
  expect_refused(tokenize("a.jsonl", "\n[1]\n"), "a.jsonl:2: found a JSON array");
  expect_refused(tokenize("a.jsonl", "{\"text\": \"x\", \"score\": 1e999}\n"),
                 "a.jsonl:1: a number exceeds the range of a double");
  expect_refused(tokenize("a.jsonl", "{\"body\": \"x\", \"id\": 3}\n"),
                 "no field `text`; name the field with --jsonl-field; the object has: body, id");
  expect_refused(tokenize("a.jsonl", "{\"text\": 3}\n"), "field `text` is a number");
  expect_refused(tokenize("a.txt", std::string("fine\na\0b", 8)), "a.txt:2: contains a NUL byte");
  expect_refused(tokenize("a.txt", ""), "no document in 1 file;");
  expect_refused(tokenize("a.txt", "x", " --valid-fraction 0.1 --valid-output " + (folder / "v")),
                 "leaves the validation set empty");
  expect_refused(tokenize("a.txt", "x", " --valid-fraction 1.5 --valid-output " + (folder / "v")),
                 "above 0 and below 1");
  expect_refused(tokenize("a.txt", "x", " --valid-fraction 0.1"), "give both or neither");
  expect_refused(tokenize("a.txt", "x", " --format csv"), "--format");
  expect_refused(run_te_data(folder, "tokenize --input " + (folder / "none.txt") + to), "no such file");
  expect_refused(run_te_data(folder, "tokenize --input " + (folder / "a.txt") +
                                         " --tokenizer gpt2 --output " + (folder / "out")),
                 "tokenizer `gpt2`: no such file or folder");
  for (const char* name :
       {"out.bin", "out.idx", "out.bin.tmp", "out.idx.tmp", "v.bin", "v.idx", "v.bin.tmp"}) {
    EXPECT_FALSE(std::filesystem::exists(folder / name)) << name;
  }
  expect_refused(run_te_data(folder, ""), "a subcommand is required: tokenize, ");
  expect_refused(run_te_data(folder, "tokenise --input x"),
                 "unknown argument tokenise; did you mean 'tokenize'?");
  expect_refused(run_te_data(folder, "tokenize"), "--input");
  expect_refused(run_te_data(folder, "inspect " + (folder / "none")), "none.idx: cannot be opened");
  expect_refused(run_te_data(folder, "inspect --samples -1 " + (folder / "none")), "--samples");
  expect_refused(run_te_data(folder, "tokenize --help >/dev/full 2>" + (folder / "stderr") + " #"),
                 "standard output could not be written");
  const Result help = run_te_data(folder, "tokenize --help");
  EXPECT_EQ(help.code, 0);
  TE_EXPECT_CONTAINS(help.out, "--document-separator");
}

}  // namespace
}  // namespace te
