// Records and reports of te-data: records of datasets, separators that never occur, tables, bad lines.
#include "data/dataset_check.h"
#include "data/dataset_record.h"
#include "te_data_testing.h"
#include "testing/log_capture.h"

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
using testing::write_dataset;
using testing::write_file;

const char* const kGpt2 = TE_SOURCE_DIR "/tests/fixtures/tokenizers/gpt2_style.json";

/// Tokenizes `text` and returns the prefix of the dataset.
std::string tokenized(const TextFolder& folder, const std::string& name, const std::string& text,
                      const std::string& tokenizer = "bytes") {
  write_file(folder / (name + ".txt"), text);
  const Result result = run_te_data(folder, "tokenize --tokenizer " + tokenizer + " --input " +
                                                (folder / (name + ".txt")) + " --output " + (folder / name));
  EXPECT_EQ(result.code, 0) << result.error;
  return folder / name;
}

TEST(TeDataRecord, IsWrittenShownAndVerified) {
  TextFolder folder;
  const std::string prefix = tokenized(folder, "a", "some text");
  const auto record = data::read_dataset_record(prefix);
  ASSERT_TRUE(record.has_value());
  EXPECT_EQ(record->tokenizer.name, "bytes");
  EXPECT_EQ(record->tokenizer.vocab_size, 257);
  EXPECT_EQ(record->tokenizer.end_of_document, 256);
  EXPECT_EQ(record->tokens, 10);
  EXPECT_EQ(record->documents, 1);
  EXPECT_EQ(record->largest_token, 256);
  TE_EXPECT_CONTAINS(
      run_te_data(folder, "inspect " + prefix).out,
      "made with the tokenizer bytes (257 tokens, " + record->tokenizer.hash + "), largest token 256");
  EXPECT_EQ(run_te_data(folder, "verify " + prefix).code, 0);
  data::DatasetRecord wrong = *record;
  wrong.largest_token = 255;
  write_file(prefix + ".meta.json", data::to_json(wrong));
  expect_refused(run_te_data(folder, "verify " + prefix), "a.meta.json: does not match " + prefix);

  // Instruction datasets have a record, too, but their masks do not.
  write_file(folder / "i.jsonl", "{\"q\": \"x\", \"a\": \"y\"}\n");
  EXPECT_EQ(
      run_te_data(folder,
                  "instruct --tokenizer bytes --template plain --prompt-field q --response-field a --input " +
                      (folder / "i.jsonl") + " --output " + (folder / "i"))
          .code,
      0);
  EXPECT_EQ(data::read_dataset_record(folder / "i")->tokenizer.hash, record->tokenizer.hash);
  EXPECT_FALSE(data::read_dataset_record(folder / "i_mask").has_value());
}

TEST(TeDataRecord, IsMergedIfAllDatasetsHaveOne) {
  TextFolder folder;
  const std::string a = tokenized(folder, "a", "aa"), b = tokenized(folder, "b", "bcd");
  const std::string merge = "merge --force --output " + (folder / "m") + " " + a + " ";
  EXPECT_EQ(run_te_data(folder, merge + b).code, 0);
  const auto record = data::read_dataset_record(folder / "m");
  ASSERT_TRUE(record.has_value());
  EXPECT_EQ(record->tokens, 7);
  EXPECT_EQ(record->largest_token, 256);
  EXPECT_EQ(record->tokenizer.hash, data::read_dataset_record(a)->tokenizer.hash);

  // A record whose counts do not match describes a dataset that was replaced.
  const std::string stale = tokenized(folder, "stale", "aa");
  std::filesystem::remove(stale + ".bin");
  std::filesystem::copy_file(b + ".bin", stale + ".bin");
  std::filesystem::copy_file(b + ".idx", stale + ".idx", std::filesystem::copy_options::overwrite_existing);
  const Result result = run_te_data(folder, merge + stale);
  EXPECT_EQ(result.code, 0) << result.error;
  TE_EXPECT_CONTAINS(result.error, "stale.meta.json: describes a dataset with 1 documents and 3 tokens, but");
  EXPECT_FALSE(data::read_dataset_record(folder / "m").has_value());
  const Result shown = run_te_data(folder, "inspect " + stale);
  TE_EXPECT_CONTAINS(shown.error, "the record is ignored");
  EXPECT_EQ(shown.out.find("made with the tokenizer"), std::string::npos) << shown.out;

  write_dataset(folder / "plain", {{1}});
  EXPECT_EQ(run_te_data(folder, merge + (folder / "plain")).code, 0);
  EXPECT_FALSE(data::read_dataset_record(folder / "m").has_value());  // the old record is removed

  const std::string other = tokenized(folder, "other", "aa", kGpt2);
  expect_refused(run_te_data(folder, "merge --output " + (folder / "n") + " " + a + " " + other),
                 other + ": made with the tokenizer " + kGpt2);
  expect_no_dataset(folder / "n");
}

TEST(TeDataRecord, SaysWhichTokenEndsDocuments) {
  TextFolder folder;
  write_file(folder / "a.txt", "a");
  const auto end_of = [&](const char* name) {
    return data::read_dataset_record(folder / name)->tokenizer.end_of_document;
  };
  const std::string call = "tokenize --tokenizer bytes --input " + (folder / "a.txt") + " --output ";
  EXPECT_EQ(run_te_data(folder, call + (folder / "with")).code, 0);
  EXPECT_EQ(run_te_data(folder, call + (folder / "without") + " --append-eod false").code, 0);
  EXPECT_EQ(end_of("with"), 256);
  EXPECT_EQ(end_of("without"), std::nullopt);
  const auto merged = [&](const std::string& a, const std::string& b) {
    const std::string merge = "merge --force --output " + (folder / "m") + " ";
    EXPECT_EQ(run_te_data(folder, merge + (folder / a) + " " + (folder / b)).code, 0);
    return end_of("m");
  };
  EXPECT_EQ(merged("with", "with"), 256);
  EXPECT_EQ(merged("with", "without"), std::nullopt);
  EXPECT_EQ(merged("without", "without"), std::nullopt);

  data::DatasetCheck check = {.vocab_size = 257};
  const testing::LogCapture log;
  data::check_datasets("data.train", {folder / "with", folder / "without"}, check);
  TE_EXPECT_CONTAINS(log.text(), "without ends documents with no token, but data.train: " +
                                     (folder / "with") + " with token 256");
}

TEST(TeDataReports, WarnsAboutASeparatorThatNeverOccurs) {
  TextFolder folder;
  write_file(folder / "a.txt", "one\n<|end|>\ntwo\n");
  const std::string call = "tokenize --force --tokenizer bytes --input " + (folder / "a.txt") + " --output " +
                           (folder / "a") + " --document-separator ";
  EXPECT_EQ(run_te_data(folder, call + "'<|end|>'").error, "");
  const Result result = run_te_data(folder, call + "'<|END|>'");
  EXPECT_EQ(result.code, 0);
  TE_EXPECT_CONTAINS(result.error, "warning: --document-separator: no line of 1 file is `<|END|>`");
  expect_refused(run_te_data(folder, call + "''"), "--document-separator: must not be empty");
  // JSON files have no separators.
  write_file(folder / "b.jsonl", "{\"text\": \"one\"}\n");
  const std::string json = "tokenize --force --tokenizer bytes --input " + (folder / "b.jsonl") +
                           " --output " + (folder / "b") + " --document-separator=--";
  EXPECT_EQ(run_te_data(folder, json).error, "");
  TE_EXPECT_CONTAINS(run_te_data(folder, json + " --input " + (folder / "a.txt")).error, "no line of 1 file");
}

TEST(TeDataReports, RefusesTablesAndNamesTheCommandThatConvertsThem) {
  TextFolder folder;
  std::filesystem::create_directory(folder / "in");
  write_file(folder / "in/README.md", "text");
  write_file(folder / "in/t.parquet", "PAR1....");
  write_file(folder / "stream.arrow", std::string("\xff\xff\xff\xff\x10\0\0\0", 8));
  const auto tokenize = [&](const std::string& input) {
    return run_te_data(
        folder, "tokenize --tokenizer bytes --output " + (folder / "a") + " --input " + (folder / input));
  };
  const std::string command =
      "scripts/parquet_to_jsonl.py " + (folder / "in/t.parquet") + " | te-data COMMAND --input -";
  expect_refused(tokenize("in/t.parquet"), command);
  expect_refused(tokenize("in"), command);  // instead of reading only the README
  expect_refused(tokenize("stream.arrow"), "Parquet and Arrow tables are not supported");
  expect_refused(run_te_data(folder, "instruct --tokenizer bytes --template plain --output " +
                                         (folder / "a") + " --input " + (folder / "in/t.parquet")),
                 command);
  expect_no_dataset(folder / "a");
}

TEST(TeDataReports, SkipBadLinesSkipsAndCountsConversations) {
  TextFolder folder;
  write_file(
      folder / "a.jsonl",
      "{\"messages\": [{\"role\": \"user\", \"content\": \"q\", \"name\": \"N\"}, {\"role\": \"assistant\", "
      "\"content\": \"a\"}], \"source\": \"s\"}\n"
      "{broken\n\n"
      "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image\"}]}]}\n"
      "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": "
      "\"b\"}]}\n");
  const std::string call = "instruct --tokenizer bytes --template plain --input " + (folder / "a.jsonl") +
                           " --output " + (folder / "a");
  expect_refused(run_te_data(folder, call), "a.jsonl:2: not valid JSON");
  expect_no_dataset(folder / "a");
  const Result result = run_te_data(folder, call + " --skip-bad-lines");
  EXPECT_EQ(result.code, 0) << result.error;
  TE_EXPECT_CONTAINS(result.error, "te-data: skipped: " + (folder / "a.jsonl") + ":2: not valid JSON");
  TE_EXPECT_CONTAINS(result.error,
                     "te-data: skipped: " + (folder / "a.jsonl") + ":4: message 0 has a part of type");
  TE_EXPECT_CONTAINS(result.out, "2 bad lines skipped\nfields not used: messages[].name, source\n");
  EXPECT_EQ(read_dataset(folder / "a"), (Documents{byte_document("q\na"), byte_document("q\nb")}));
}

TEST(TeDataReports, SkipBadLinesSkipsAndCountsTexts) {
  TextFolder folder;
  write_file(folder / "a.jsonl",
             "{\"text\": \"q\"}\n{broken\n{\"t\": 3}\n{\"text\": 4}\n[]\n{\"text\": \"r\"}\n{\n{\n{\n");
  const std::string call =
      "tokenize --tokenizer bytes --input " + (folder / "a.jsonl") + " --output " + (folder / "a");
  expect_refused(run_te_data(folder, call), "a.jsonl:2: not valid JSON");
  expect_no_dataset(folder / "a");
  const Result result = run_te_data(folder, call + " --skip-bad-lines");
  EXPECT_EQ(result.code, 0) << result.error;
  for (const char* what : {":2: not valid JSON", ":3: no field `text`", ":4: field `text` is a number",
                           ":5: found a JSON array", ":7: not valid JSON"})
    TE_EXPECT_CONTAINS(result.error, "te-data: skipped: " + (folder / "a.jsonl") + what);
  TE_EXPECT_CONTAINS(result.error, "te-data: skipped: further bad lines are only counted\n");
  EXPECT_EQ(result.error.find(":8:"), std::string::npos) << result.error;
  TE_EXPECT_CONTAINS(result.out, "7 bad lines skipped\n");
  EXPECT_EQ(read_dataset(folder / "a"), (Documents{byte_document("q"), byte_document("r")}));
  write_file(folder / "a.jsonl", "{\"t\": 3}\n");
  EXPECT_EQ(run_te_data(folder, call + " --force --skip-bad-lines").code, 2);
}

// The scripts' last line in a pipe is no bad line: otherwise the dataset would be truncated without an error.
TEST(TeDataReports, AFailedScriptEndsSkippingOfBadLines) {
  TextFolder folder;
  const std::string failed = "incomplete: render_chat.py has failed\n";
  const std::string rendered = R"({"text": "q", "segments": [{"text": "a", "loss": 1}]})"
                               "\n";
  const std::string to =
      " --skip-bad-lines --tokenizer bytes --input - --output " + (folder / "a") + " <" + (folder / "in");
  for (const std::string& call :
       {std::string("instruct --rendered"), std::string("instruct --rendered --format json"),
        std::string("tokenize"), std::string("tokenize --format jsonl")}) {
    SCOPED_TRACE(call);
    for (const std::string& lines : {std::string(), rendered + rendered, rendered + "{\"text\": \"\n"}) {
      write_file(folder / "in", lines + failed);
      const Result result = run_te_data(folder, call + to);
      EXPECT_EQ(result.code, 2);
      TE_EXPECT_CONTAINS(result.error, "the script that wrote this input has failed");
      expect_no_dataset(folder / "a");
    }
  }
}

TEST(TeDataReports, RenderedConversationsNeedNoTemplate) {
  TextFolder folder;
  write_file(folder / "r.jsonl", R"({"segments": [{"text": "q\n", "loss": 0}, {"text": "a", "loss": 1}]})"
                                 "\n");
  const std::string call = "instruct --force --rendered --tokenizer bytes --input " + (folder / "r.jsonl") +
                           " --output " + (folder / "r");
  EXPECT_EQ(run_te_data(folder, call).code, 0);
  EXPECT_EQ(read_dataset(folder / "r"), (Documents{{'q', '\n', 'a'}}));
  EXPECT_EQ(read_dataset(folder / "r_mask"), (Documents{{0, 0, 1}}));
  expect_refused(run_te_data(folder, call + " --template plain"),
                 "--rendered: the conversations are rendered already");
}

}  // namespace
}  // namespace te
