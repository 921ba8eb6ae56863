// te-data and the file system: merge and verify, compressed input, and the files after a run is interrupted, killed, or
// out of space.
#include <sys/stat.h>
#include <zlib.h>

#include "te_data_testing.h"

namespace te {
namespace {

using testing::byte_document;
using testing::Documents;
using testing::expect_no_dataset;
using testing::expect_refused;
using testing::read_dataset;
using testing::read_file;
using testing::Result;
using testing::run_te_data;
using testing::TextFolder;
using testing::write_dataset;
using testing::write_file;

std::string crc32_text(const std::string& path) {
  const std::string bytes = read_file(path);
  return fmt::format(
      "{:08x}", ::crc32(0, reinterpret_cast<const Bytef*>(bytes.data()), static_cast<uInt>(bytes.size())));
}

TEST(TeDataFiles, TokenizesFilesOfTheCompressionTools) {
  TextFolder folder;
  const Documents expected = {byte_document("first\n"), byte_document("second\n")};
  for (const char* tool : {"gzip", "zstd -q", "xz"}) {
    const std::string name = std::string(tool).substr(0, std::string(tool).find(' '));
    if (std::system(("command -v " + name + " >/dev/null").c_str()) != 0) continue;
    const std::string compress = "printf 'first\\n--\\nsecond\\n' | " + std::string(tool) + " -c";
    Result result = run_te_data(
        folder,
        "tokenize --force --input - --document-separator=-- --tokenizer bytes --output " + (folder / "a"),
        compress + " | ");
    EXPECT_EQ(result.code, 0) << result.error;
    EXPECT_EQ(read_dataset(folder / "a"), expected) << tool;
    ASSERT_EQ(std::system((compress + " >" + (folder / "in")).c_str()), 0);
    std::filesystem::resize_file(folder / "in", std::filesystem::file_size(folder / "in") - 5);
    result = run_te_data(
        folder, "tokenize --tokenizer bytes --input " + (folder / "in") + " --output " + (folder / "b"));
    expect_refused(result, "ends early, the file is truncated");
    expect_no_dataset(folder / "b");
  }
}

TEST(TeDataFiles, SplitsAndEndsDocumentsByOption) {
  TextFolder folder;
  write_file(folder / "a.txt", "one\ntwo\n\nthree");
  const std::string call =
      "tokenize --force --tokenizer bytes --output " + (folder / "a") + " --input " + (folder / "a.txt");
  EXPECT_EQ(run_te_data(folder, call + " --split-by line --threads 2").code, 0);
  EXPECT_EQ(read_dataset(folder / "a"),
            (Documents{byte_document("one"), byte_document("two"), byte_document("three")}));
  EXPECT_EQ(run_te_data(folder, call + " --split-by blank-line --append-eod false").code, 0);
  EXPECT_EQ(read_dataset(folder / "a"),
            (Documents{{'o', 'n', 'e', '\n', 't', 'w', 'o', '\n'}, {'t', 'h', 'r', 'e', 'e'}}));
  expect_refused(run_te_data(folder, call + " --split-by line --document-separator=--"), "use one of them");
  expect_refused(run_te_data(folder, call + " --threads -1"), "--threads");
}

// For all commands that write a dataset, and for each file that would be overwritten.
TEST(TeDataFiles, DatasetsAreReplacedWithForceOnly) {
  TextFolder folder;
  write_file(folder / "a.txt", "one\n\ntwo");
  write_file(folder / "c.jsonl", "{\"q\": \"x\", \"a\": \"y\"}\n{\"q\": \"v\", \"a\": \"w\"}\n");
  write_dataset(folder / "b", {{4}});
  const std::string tokenize =
                        "tokenize --tokenizer bytes --split-by blank-line --input " + (folder / "a.txt"),
                    instruct =
                        "instruct --tokenizer bytes --template plain --prompt-field q --response-field a "
                        "--input " +
                        (folder / "c.jsonl"),
                    merge = "merge " + (folder / "b") + " " + (folder / "b");
  const std::string split = " --valid-fraction 0.5 --valid-output ";
  int number = 0;
  const auto expect_kept = [&](const std::string& call, const std::string& option, const std::string& there,
                               const std::string& file) {
    SCOPED_TRACE(call);
    write_file(folder / file, "mine");
    expect_refused(run_te_data(folder, call),
                   option + ": " + (folder / file) + " exists; give another prefix, or --force to replace");
    EXPECT_EQ(read_file(folder / file), "mine");
    expect_no_dataset(folder / there);
    const Result forced = run_te_data(folder, call + " --force");
    EXPECT_EQ(forced.code, 0) << forced.error;
    EXPECT_NE(read_file(folder / file), "mine");
    ++number;
  };
  for (const std::string& call : {tokenize, instruct, merge}) {
    for (const char* suffix : {".idx", ".bin"}) {
      const std::string name = "out" + std::to_string(number);
      expect_kept(call + " --output " + (folder / name), "--output", "none", name + suffix);
      if (call == merge) continue;
      const std::string valid = "valid" + std::to_string(number);
      expect_kept(call + " --output " + (folder / ("new" + valid)) + split + (folder / valid),
                  "--valid-output", "new" + valid, valid + suffix);
    }
  }
  const std::string masked = "masked_mask.bin";
  expect_kept(instruct + " --output " + (folder / "masked"), "--output", "masked", masked);
  // A merged dataset without a mask would replace one with a mask.
  expect_refused(run_te_data(folder, merge + " --force --output " + (folder / "masked")),
                 "masked_mask.idx: loss mask of an existing dataset with this prefix");
}

TEST(TeDataFiles, PipesInPlaceOfFilesAreRefused) {
  TextFolder folder;
  write_file(folder / "a.txt", "one");
  const std::string call =
      "tokenize --tokenizer bytes --input " + (folder / "a.txt") + " --output " + (folder / "out");
  for (const char* suffix : {".bin.tmp", ".idx.tmp", ".meta.json.tmp"}) {
    ASSERT_EQ(::mkfifo((folder / ("out" + std::string(suffix))).c_str(), 0666), 0);
    expect_refused(run_te_data(folder, call, "timeout 20 "),
                   "out" + std::string(suffix) + ": cannot be written");
    std::filesystem::remove(folder / ("out" + std::string(suffix)));
  }
  EXPECT_EQ(run_te_data(folder, call).code, 0);
  std::filesystem::remove(folder / "out.meta.json");
  ASSERT_EQ(::mkfifo((folder / "out.meta.json").c_str(), 0666), 0);
  const Result result = run_te_data(folder, "inspect " + (folder / "out"), "timeout 20 ");
  EXPECT_EQ(result.code, 2);
  TE_EXPECT_CONTAINS(result.error, "out.meta.json: is not a dataset record: is a pipe");
}

TEST(TeDataFiles, ReadsPipesAsInput) {
  TextFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0666), 0);
  const std::string output = " --tokenizer bytes --output ";
  Result result = run_te_data(folder, "tokenize --input " + (folder / "pipe") + output + (folder / "a"),
                              "(sleep 0.3; printf one) >" + (folder / "pipe") + " & ");
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_EQ(read_dataset(folder / "a"), Documents{byte_document("one")});
  result = run_te_data(folder, "tokenize --input /dev/stdin" + output + (folder / "b"), "printf two | ");
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_EQ(read_dataset(folder / "b"), Documents{byte_document("two")});
  // No program writes to the pipe: a signal ends te-data. Without --foreground, timeout sends one to the group, too.
  result = run_te_data(folder, "tokenize --input " + (folder / "pipe") + output + (folder / "c"),
                       "timeout --foreground --preserve-status -s TERM -k 20 0.5 ");
  EXPECT_EQ(result.code, 130) << result.error;
  expect_no_dataset(folder / "c");
  expect_refused(run_te_data(folder, "tokenize --input /dev/zero" + output + (folder / "c"), "timeout 20 "),
                 "/dev/zero:1: contains a NUL byte");
  expect_refused(run_te_data(folder, "tokenize --format jsonl --input /dev/zero" + output + (folder / "c"),
                             "timeout 20 "),
                 "/dev/zero:1: contains a NUL byte");
}

TEST(TeDataFiles, MergesDatasetsOfOneType) {
  TextFolder folder;
  write_dataset(folder / "a", {{1, 2}, {}, {3}});
  write_dataset(folder / "b", {{4, 65535}});
  write_dataset(folder / "empty", {});
  write_dataset(folder / "i32", {{4}}, data::TokenType::kI32);
  Result result = run_te_data(folder, "merge --output " + (folder / "out/m") + " " + (folder / "a") + " " +
                                          (folder / "empty") + " " + (folder / "b") + " " + (folder / "a"));
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_EQ(read_dataset(folder / "out/m"), (Documents{{1, 2}, {}, {3}, {4, 65535}, {1, 2}, {}, {3}}));
  TE_EXPECT_CONTAINS(result.out, "7 documents, 8 tokens, 16 bytes as u16");
  // The result of merging equals that of writing the documents one by one.
  write_dataset(folder / "once", {{1, 2}, {}, {3}, {4, 65535}, {1, 2}, {}, {3}});
  EXPECT_EQ(read_file(folder / "out/m.idx"), read_file(folder / "once.idx"));

  const std::string to = "merge --output " + (folder / "no") + " ";
  expect_refused(run_te_data(folder, to + (folder / "a") + " " + (folder / "i32")),
                 "i32: has i32 tokens, " + (folder / "a") + " has u16");
  expect_refused(run_te_data(folder, to + (folder / "a") + " " + (folder / "none")),
                 "none.idx: cannot be opened");
  expect_no_dataset(folder / "no");
  expect_refused(run_te_data(folder, "merge --output " + (folder / "a") + " " + (folder / "a")),
                 "a.bin is one of the inputs");
  EXPECT_EQ(read_dataset(folder / "a"), (Documents{{1, 2}, {}, {3}}));
}

TEST(TeDataFiles, VerifiesEveryTokenAndPrintsChecksums) {
  TextFolder folder;
  write_dataset(folder / "a", {{1, 2}, {}, {300}});
  write_dataset(folder / "b", {{7}});
  Result result =
      run_te_data(folder, "verify " + (folder / "a") + " " + (folder / "b") + " --vocab-size 301");
  EXPECT_EQ(result.code, 0) << result.error;
  TE_EXPECT_CONTAINS(result.out,
                     "a: ok, 3 documents (1 empty), 3 tokens as u16, largest token 300, crc32 bin " +
                         crc32_text(folder / "a.bin") + " idx " + crc32_text(folder / "a.idx"));
  TE_EXPECT_CONTAINS(result.out, "b: ok, 1 documents, 1 tokens");

  result = run_te_data(folder, "verify " + (folder / "a") + " --vocab-size 300");
  EXPECT_EQ(result.code, 2);
  TE_EXPECT_CONTAINS(result.error, "a.bin: token 0 of document 2 is 300, but must be at least 0 and below");
  expect_refused(run_te_data(folder, "verify " + (folder / "a") + " --tokenizer bytes"),
                 "below vocab_size = 257");
  write_file(folder / "b.bin", "xyz");
  expect_refused(run_te_data(folder, "verify " + (folder / "b")), "b.bin: has 3 bytes");
  expect_refused(run_te_data(folder, "verify"), "prefixes");
}

/// Starts te-data with a pipe that stays open as input, waits until it writes, sends a signal, and returns its exit
/// code.
Result run_and_signal(const TextFolder& folder, const char* signal) {
  const std::string script = folder / "script.sh";
  write_file(
      script,
      "cd " + (folder / "") +
          "\nrm -f pipe; mkfifo pipe\n"
          "(printf 'some text\\n--\\nmore'; exec sleep 60) >pipe & holder=$!\n" TE_DATA_EXECUTABLE
          " tokenize --force --input pipe --document-separator=-- --tokenizer bytes --output out & run=$!\n"
          "while [ ! -e out.bin.tmp ] && kill -0 $run; do sleep 0.02; done\n"
          "sleep 0.2; kill -" +
          std::string(signal) + " $run\nwait $run; code=$?\nkill $holder\nexit $code\n");
  const int status =
      std::system(("sh " + script + " >" + (folder / "stdout") + " 2>" + (folder / "stderr")).c_str());
  return {WEXITSTATUS(status), read_file(folder / "stdout"), read_file(folder / "stderr")};
}

TEST(TeDataFiles, AnInterruptedRunKeepsTheOldDatasetAndLeavesNoFile) {
  TextFolder folder;
  for (const char* signal : {"TERM", "INT"}) {
    write_dataset(folder / "out", {{1, 2, 3}});
    const Result result = run_and_signal(folder, signal);
    EXPECT_EQ(result.code, 130) << result.error;
    TE_EXPECT_CONTAINS(result.error, "te-data: interrupted; no output was written");
    EXPECT_EQ(read_dataset(folder / "out"), (Documents{{1, 2, 3}}));
    EXPECT_FALSE(std::filesystem::exists(folder / "out.bin.tmp"));
    std::filesystem::remove(folder / "out.idx");
  }
}

TEST(TeDataFiles, AKilledRunLeavesNoDatasetAndDoesNotBlockTheNext) {
  TextFolder folder;
  EXPECT_EQ(run_and_signal(folder, "KILL").code, 128 + 9);
  EXPECT_FALSE(std::filesystem::exists(folder / "out.bin"));
  EXPECT_FALSE(std::filesystem::exists(folder / "out.idx"));
  write_file(folder / "out.bin.tmp", std::string(10000, 'x'));  // as left by a longer run
  write_file(folder / "out.idx.tmp", std::string(10000, 'x'));
  write_file(folder / "a.txt", "text");
  const Result result = run_te_data(
      folder, "tokenize --tokenizer bytes --input " + (folder / "a.txt") + " --output " + (folder / "out"));
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_EQ(read_dataset(folder / "out"), (Documents{byte_document("text")}));
  EXPECT_FALSE(std::filesystem::exists(folder / "out.bin.tmp"));
  EXPECT_FALSE(std::filesystem::exists(folder / "out.idx.tmp"));
}

TEST(TeDataFiles, AFullDiskKeepsTheOldDataset) {
  TextFolder folder;
  write_dataset(folder / "out", {{1, 2, 3}});
  write_file(folder / "a.txt", std::string(3000000, 'a'));
  const std::string call =
      "tokenize --force --tokenizer bytes --input " + (folder / "a.txt") + " --output " + (folder / "out");
  // Beyond a limit on file sizes, writes fail as on a full disk.
  expect_refused(run_te_data(folder, call, "ulimit -f 2000; "), "out.bin.tmp: cannot be written");
  std::filesystem::create_symlink("/dev/full", folder / "out.bin.tmp");
  expect_refused(run_te_data(folder, call),
                 "cannot be written (No space left on device); check the folder's");
  std::filesystem::create_symlink("/dev/full", folder / "out.idx.tmp");
  expect_refused(run_te_data(folder, call), "out.idx.tmp: cannot be written (No space left on device)");
  EXPECT_EQ(read_dataset(folder / "out"), (Documents{{1, 2, 3}}));
  EXPECT_FALSE(std::filesystem::exists(folder / "out.bin.tmp"));
  EXPECT_FALSE(std::filesystem::exists(folder / "out.idx.tmp"));
}

// Otherwise --skip-bad-lines would count the conversation as a bad line and publish the others without its tokens.
TEST(TeDataFiles, AFullDiskIsNoBadLine) {
  TextFolder folder;
  write_dataset(folder / "out", {{1, 2, 3}});
  const std::string small = "{\"q\": \"x\", \"a\": \"y\"}\n";
  write_file(folder / "c.jsonl",
             small + "{\"q\": \"x\", \"a\": \"" + std::string(3000000, 'a') + "\"}\n" + small);
  const Result result =
      run_te_data(folder,
                  "instruct --force --skip-bad-lines --tokenizer bytes --template plain --prompt-field q "
                  "--response-field a --input " +
                      (folder / "c.jsonl") + " --output " + (folder / "out"),
                  "ulimit -f 2000; ");
  expect_refused(result, "out.bin.tmp: cannot be written");
  EXPECT_EQ(read_dataset(folder / "out"), (Documents{{1, 2, 3}}));
  expect_no_dataset(folder / "out_mask");
}

// Otherwise the next try would be refused, because one of the sets exists.
TEST(TeDataFiles, AFullDiskAtTheSecondSetWritesNone) {
  TextFolder folder;
  write_file(folder / "a.txt", "one\n\ntwo");
  write_file(folder / "c.jsonl", "{\"q\": \"x\", \"a\": \"y\"}\n{\"q\": \"v\", \"a\": \"w\"}\n");
  const std::string fields = "--template plain --prompt-field q --response-field a --input ";
  for (const std::string& call : {"tokenize --split-by blank-line --input " + (folder / "a.txt"),
                                  "instruct " + fields + (folder / "c.jsonl")}) {
    std::filesystem::create_symlink("/dev/full", folder / "out.idx.tmp");
    expect_refused(run_te_data(folder, call + " --tokenizer bytes --valid-fraction 0.5 --output " +
                                           (folder / "out") + " --valid-output " + (folder / "valid")),
                   "out.idx.tmp: cannot be written (No space left on device)");
    for (const char* prefix : {"out", "out_mask", "valid", "valid_mask"}) expect_no_dataset(folder / prefix);
  }
}

}  // namespace
}  // namespace te
