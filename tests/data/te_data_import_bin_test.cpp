// te-data import-bin: token shards of llm.c and modded-nanogpt.
#include "data/dataset_record.h"
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
using testing::write_file;

constexpr int32_t kShardGpt2[] = {20240520, 1}, kShardLlama3[] = {20240801, 7};

template <class Stored>
std::string shard_file(const int32_t (&format)[2], const std::vector<Stored>& tokens, int32_t missing = 0) {
  int32_t header[256] = {format[0], format[1], static_cast<int32_t>(tokens.size()) + missing};
  std::string bytes(reinterpret_cast<const char*>(header), sizeof(header));
  bytes.append(reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(Stored));
  return bytes;
}

class TeDataImportBin : public ::testing::Test {
 protected:
  Result import(const std::string& files, const std::string& arguments = "--eod 9") {
    return run_te_data(folder_, "import-bin --output data " + arguments + " --input " + files,
                       "cd " + (folder_ / "") + " && ");
  }
  void write(const std::string& name, const std::string& bytes) { write_file(folder_ / name, bytes); }
  Documents documents(const std::string& name = "data") { return read_dataset(folder_ / name); }

  TextFolder folder_;
};

// The format of llm.c: the separator precedes each document, and documents continue in the next shard.
TEST_F(TeDataImportBin, DocumentsEndWithSeparator) {
  write("0.bin", shard_file<uint16_t>(kShardGpt2, {9, 1, 2, 3, 9, 9, 4}));
  write("1.bin", shard_file<uint16_t>(kShardGpt2, {5, 9, 6, 65535}));
  const Result result = import("0.bin 1.bin");
  ASSERT_EQ(result.code, 0) << result.error;
  EXPECT_EQ(result.out, "data: 3 documents, 9 tokens, 18 bytes as u16\n");
  EXPECT_EQ(result.error, "");
  EXPECT_EQ(documents(), (Documents{{1, 2, 3, 9}, {4, 5, 9}, {6, 65535}}));
  EXPECT_FALSE(data::read_dataset_record(folder_ / "data").has_value());
  EXPECT_EQ(run_te_data(folder_, "verify " + (folder_ / "data")).code, 0);
}

TEST_F(TeDataImportBin, DocumentsBeginWithSeparator) {
  write("0.bin", shard_file<uint32_t>(kShardLlama3, {1, 128000, 2, 3, 128000, 128000}));
  write("1.bin", shard_file<uint32_t>(kShardLlama3, {4, 128000}));
  const Result result =
      import("0.bin --input 1.bin", "--vocab-size 128256 --eod 128000 --eod-position first");
  ASSERT_EQ(result.code, 0) << result.error;
  EXPECT_EQ(result.out, "data: 3 documents, 6 tokens, 24 bytes as i32\n");
  EXPECT_EQ(documents(), (Documents{{1}, {128000, 2, 3}, {128000, 4}}));
}

TEST_F(TeDataImportBin, ChecksAndRecordsTokenizer) {
  write("0.bin", shard_file<uint16_t>(kShardGpt2, {256, 'a', 'b', 256, 'c', 256, 'd', 256}));
  const Result result = import("0.bin", "--tokenizer bytes --valid-output valid --valid-fraction 0.3");
  ASSERT_EQ(result.code, 0) << result.error;
  EXPECT_EQ(documents(), (Documents{{'a', 'b', 256}, {'d', 256}}));
  EXPECT_EQ(documents("valid"), (Documents{{'c', 256}}));
  const auto record = data::read_dataset_record(folder_ / "data");
  ASSERT_TRUE(record.has_value());
  EXPECT_EQ(record->tokenizer.name, "bytes");
  EXPECT_EQ(record->tokens, 5);
  EXPECT_EQ(record->tokenizer.end_of_document, 256);
  ASSERT_EQ(import("0.bin", "--force --tokenizer bytes --eod 98").code, 0);
  EXPECT_EQ(data::read_dataset_record(folder_ / "data")->tokenizer.end_of_document, 98);
  ASSERT_EQ(import("0.bin", "--force --tokenizer bytes").code, 0);
  expect_refused(import("0.bin"), "data.idx exists; give another prefix, or --force");
  write("0.bin", shard_file<uint16_t>(kShardGpt2, {'a', 257}));
  expect_refused(import("0.bin", "--force --tokenizer bytes"),
                 "0.bin: token 1 is 257, but must be below the vocabulary size 257");
  EXPECT_EQ(documents().size(), 3u);  // the import before is unchanged
}

TEST_F(TeDataImportBin, WarnsIfNoSeparatorOccurs) {
  write("0.bin", shard_file<uint16_t>(kShardGpt2, {1, 2}));
  const Result result = import("0.bin");
  EXPECT_EQ(result.code, 0);
  TE_EXPECT_CONTAINS(result.error, "warning: --eod: no token of 1 file is 9");
  EXPECT_EQ(documents(), (Documents{{1, 2}}));
}

TEST_F(TeDataImportBin, RejectsInvalidFilesAndOptions) {
  write("good.bin", shard_file<uint16_t>(kShardGpt2, {1, 9}));
  write("llama.bin", shard_file<uint32_t>(kShardLlama3, {1, 9}));
  write("empty.bin", shard_file<uint16_t>(kShardGpt2, {}));
  write("magic.bin", shard_file<uint16_t>({20240521, 1}, {1, 9}));
  write("version.bin", shard_file<uint16_t>({20240520, 2}, {1, 9}));
  write("evaluation.bin", shard_file<uint16_t>({20240522, 1}, {1, 9}));
  write("short.bin", shard_file<uint16_t>(kShardGpt2, {1, 9}, 1));
  write("long.bin", shard_file<uint16_t>(kShardGpt2, {1, 9}, -1));
  write("negative.bin", shard_file<uint16_t>(kShardGpt2, {1, 9}, -3));
  write("header.bin", shard_file<uint16_t>(kShardGpt2, {}).substr(0, 1023));
  write("id.bin", shard_file<uint32_t>(kShardLlama3, {1, 0x80000000U}));
  expect_refused(import("empty.bin"), "--input: no tokens in 1 file");
  expect_refused(import("magic.bin"),
                 "magic.bin: is not a token shard of llm.c or modded-nanogpt: the magic is 20240521");
  expect_refused(import("version.bin"), "version.bin: has version 2 of magic 20240520; only version 1");
  expect_refused(import("evaluation.bin"), "evaluation.bin: is an evaluation file of llm.c");
  for (const char* name : {"short.bin", "long.bin", "negative.bin"})
    expect_refused(import(std::string("good.bin ") + name),
                   std::string(name) + ": has 1028 bytes, but its header declares");
  expect_refused(import("header.bin"), "header.bin: has 1023 bytes, fewer than the 1024");
  expect_refused(import("id.bin"),
                 "id.bin: token 1 is 2147483648, but must be below the vocabulary size 2147483648");
  expect_refused(import("good.bin llama.bin"),
                 "--input: tokens have 4 bytes in llama.bin, but 2 in good.bin");
  expect_refused(import("none.bin"), "none.bin");
  expect_refused(import("good.bin", ""), "--eod: give the id of the token between documents");
  expect_refused(import("good.bin", "--eod 9 --vocab-size 9"), "--eod: 9 is not in a vocabulary of 9 tokens");
  expect_refused(import("good.bin", "--eod 9 --valid-output v --valid-fraction 0.5"), "leaves the");
  expect_no_dataset(folder_ / "data");
  expect_no_dataset(folder_ / "v");
}

}  // namespace
}  // namespace te
