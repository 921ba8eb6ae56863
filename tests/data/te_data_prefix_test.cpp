// Output prefixes of te-data: written by another te-data, in two spellings, names of files, names of inputs.
#include "te_data_testing.h"

namespace te {
namespace {

using testing::Documents;
using testing::expect_no_dataset;
using testing::expect_refused;
using testing::read_dataset;
using testing::Result;
using testing::run_te_data;
using testing::TextFolder;
using testing::write_dataset;
using testing::write_file;

const char* const kTokenize = "tokenize --tokenizer bytes --split-by line --input ";
const char* const kInstruct =
    "instruct --tokenizer bytes --template plain --prompt-field q --response-field a --input ";

/// A folder with inputs of the commands.
class TeDataPrefix : public ::testing::Test {
 protected:
  TeDataPrefix() {
    write_file(folder_ / "a.txt", "one\ntwo\n");
    write_file(folder_ / "c.jsonl", "{\"q\": \"x\", \"a\": \"y\"}\n{\"q\": \"v\", \"a\": \"w\"}\n");
    write_dataset(folder_ / "old", {{1, 2}});
  }
  /// Runs te-data in the folder.
  Result run(const std::string& arguments) const {
    return run_te_data(folder_, arguments, "cd " + (folder_ / "") + " && ");
  }
  TextFolder folder_;
};

TEST_F(TeDataPrefix, AnotherWriterOfThePrefixIsRefused) {
  const int32_t header[256] = {20240520, 1, 1};  // of a token shard with one token
  write_file(folder_ / "s.bin",
             std::string(reinterpret_cast<const char*>(header), sizeof(header)) + std::string("\1\0", 2));
  data::IndexedDatasetWriter writer(folder_ / "old", data::TokenType::kU16);
  for (const std::string& command :
       {kTokenize + std::string("a.txt"), kInstruct + std::string("c.jsonl"),
        std::string("import-bin --eod 2 --input s.bin"), std::string("merge old old")}) {
    const std::string output = command.starts_with("merge") ? "new" : "./old";
    data::IndexedDatasetWriter other(folder_ / "new", data::TokenType::kU16);
    expect_refused(run(command + " --force --output " + output),
                   output + ": another te-data writes a dataset with this prefix; wait for it");
    EXPECT_EQ(read_dataset(folder_ / "old"), Documents({{1, 2}}));
    EXPECT_TRUE(std::filesystem::exists(folder_ / "old.bin.tmp"));
    EXPECT_TRUE(std::filesystem::exists(folder_ / "old.idx.tmp"));
    expect_no_dataset(folder_ / "old_mask");
  }
  expect_no_dataset(folder_ / "new");
  writer.add_document(std::vector<int32_t>{3});
  writer.finish();
  EXPECT_EQ(read_dataset(folder_ / "old"), Documents({{3}}));
  EXPECT_EQ(run(kTokenize + std::string("a.txt --force --output old")).code, 0);  // the lock has ended
}

TEST_F(TeDataPrefix, TwoSpellingsOfOnePrefixAreRefused) {
  std::filesystem::create_directory(folder_ / "d");
  std::filesystem::create_directory_symlink("d", folder_ / "link");
  write_dataset(folder_ / "d/al", {{1, 2}});
  const std::string split = " --valid-fraction 0.5 --force --output ";
  for (const std::string& command : {kTokenize + std::string("a.txt"), kInstruct + std::string("c.jsonl")}) {
    for (const std::string& other :
         {std::string("./d/al"), std::string("d/../d//al"), std::string("link/al"), folder_ / "d/al"})
      expect_refused(run(command + split + "d/al --valid-output " + other), "--valid-output: is the same as");
    for (const char* pair : {"d/al --valid-output ./d/al_mask", "./d/al_mask --valid-output d/al"})
      expect_refused(run(command + split + pair), "one names the loss mask of the other");
  }
  EXPECT_EQ(read_dataset(folder_ / "d/al"), Documents({{1, 2}}));
  expect_no_dataset(folder_ / "d/al_mask");
}

TEST_F(TeDataPrefix, NamesOfFilesAreRefused) {
  const std::string tokenize = kTokenize + std::string("a.txt");
  for (const std::string suffix : {".bin", ".idx"}) {
    const std::string message = ": `x" + suffix + "` names a file; give the prefix `x`";
    expect_refused(run(tokenize + " --output x" + suffix), "--output" + message);
    expect_refused(run(tokenize + " --output y --valid-fraction 0.5 --valid-output x" + suffix),
                   "--valid-output" + message);
    expect_refused(run("merge old --output x" + suffix), "--output" + message);
  }
}

TEST_F(TeDataPrefix, InputsAreNotReplaced) {
  std::filesystem::copy_file(folder_ / "a.txt", folder_ / "t.bin");
  expect_refused(run(kTokenize + std::string("t.bin --force --output ./t")), "./t.bin is one of the inputs");
  std::filesystem::copy_file(folder_ / "c.jsonl", folder_ / "c_mask.idx");
  expect_refused(run(kInstruct + std::string("c_mask.idx --force --output c")), "c_mask.idx is one of the");
  // The loss mask of the result would replace one of the datasets.
  for (const char* output : {"m", "m_mask"})
    EXPECT_EQ(run(kInstruct + std::string("c.jsonl --force --output ") + output).code, 0);
  const std::string before = testing::read_file(folder_ / "m_mask.bin");
  expect_refused(run("merge m_mask --force --output ./m"), "--output: ./m_mask.bin is one of the inputs");
  expect_refused(run("merge m_mask --force --output ./m_mask"), "./m_mask.bin is one of the inputs");
  EXPECT_EQ(testing::read_file(folder_ / "m_mask.bin"), before);
}

}  // namespace
}  // namespace te
