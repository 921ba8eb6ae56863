// The Megatron format: golden bytes, round trips, and damaged files, which must be refused with a message of one line.
#include "data/indexed_dataset.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "data_testing.h"
#include "testing/largest_allocation.h"

namespace te {
namespace {

using testing::Documents;
using testing::largest_allocation;
using testing::read_dataset;
using testing::read_file;
using testing::TextFolder;
using testing::user_error_of;
using testing::write_dataset;
using testing::write_file;

void put(std::string& bytes, uint64_t value, int size) {
  for (int i = 0; i < size; ++i) bytes += static_cast<char>(value >> (8 * i));
}

/// The .idx of documents with 3, 0 and 2 tokens, field by field.
std::string golden_index() {
  std::string bytes("MMIDIDX\0\0", 9);
  put(bytes, 1, 8);  // version
  put(bytes, 8, 1);  // u16
  put(bytes, 3, 8);  // sequences
  put(bytes, 4, 8);  // documents + 1
  for (int length : {3, 0, 2}) put(bytes, length, 4);
  for (int pointer : {0, 6, 6}) put(bytes, pointer, 8);
  for (int sequence : {0, 1, 2, 3}) put(bytes, sequence, 8);
  return bytes;
}

const Documents kGolden = {{1, 2, 65535}, {}, {256, 7}};
const std::string kGoldenTokens("\x01\x00\x02\x00\xff\xff\x00\x01\x07\x00", 10);

TEST(IndexedDataset, WritesTheGoldenBytes) {
  TextFolder folder;
  write_dataset(folder / "new/sub/golden", kGolden);
  EXPECT_EQ(read_file(folder / "new/sub/golden.idx"), golden_index());
  EXPECT_EQ(read_file(folder / "new/sub/golden.bin"), kGoldenTokens);
  EXPECT_FALSE(std::filesystem::exists(folder / "new/sub/golden.bin.tmp"));
  EXPECT_FALSE(std::filesystem::exists(folder / "new/sub/golden.idx.tmp"));
}

TEST(IndexedDataset, ReadsTheGoldenBytesWithAndWithoutModes) {
  TextFolder folder;
  write_file(folder / "a.bin", kGoldenTokens);
  for (const std::string& modes : {std::string(), std::string(3, '\0')}) {
    write_file(folder / "a.idx", golden_index() + modes);
    EXPECT_EQ(read_dataset(folder / "a"), kGolden);
  }
  const data::IndexedDataset dataset(folder / "a");
  EXPECT_EQ(dataset.num_tokens(), 5);
  EXPECT_EQ(dataset.num_sequences(), 3);
  EXPECT_EQ(dataset.token_type(), data::TokenType::kU16);
  const std::vector<int64_t> owners = {0, 0, 0, 2, 2};  // document 1 is empty
  for (int64_t i = 0; i < 5; ++i) EXPECT_EQ(dataset.document_at(i), owners[static_cast<size_t>(i)]) << i;
}

TEST(IndexedDataset, ReadsDocumentsOfSeveralSequences) {
  std::string index("MMIDIDX\0\0", 9);
  put(index, 1, 8), put(index, 8, 1), put(index, 3, 8), put(index, 3, 8);
  for (int length : {2, 1, 2}) put(index, length, 4);
  for (int pointer : {0, 4, 6}) put(index, pointer, 8);
  for (int sequence : {0, 2, 3}) put(index, sequence, 8);
  TextFolder folder;
  write_file(folder / "a.idx", index);
  write_file(folder / "a.bin", kGoldenTokens);
  EXPECT_EQ(read_dataset(folder / "a"), (Documents{{1, 2, 65535}, {256, 7}}));
}

TEST(IndexedDataset, RoundTripsEveryIntegerType) {
  const std::vector<std::pair<data::TokenType, int32_t>> types = {
      {data::TokenType::kU8, 255},         {data::TokenType::kI8, 127},
      {data::TokenType::kI16, 32767},      {data::TokenType::kU16, 65535},
      {data::TokenType::kI32, 2000000000}, {data::TokenType::kI64, 2000000000}};
  for (const auto& [type, largest] : types) {
    TextFolder folder;
    const Documents documents = {{0, 1, largest}, std::vector<int32_t>(300000, 5), {}, {largest}};
    write_dataset(folder / "a", documents, type);
    EXPECT_EQ(std::filesystem::file_size(folder / "a.bin"),
              300004u * static_cast<uint64_t>(data::token_size(type)));
    EXPECT_EQ(data::IndexedDataset(folder / "a").token_type(), type);
    EXPECT_EQ(read_dataset(folder / "a"), documents) << data::token_type_name(type);
  }
}

TEST(IndexedDataset, ChoosesTheTypeAsMegatronDoes) {
  EXPECT_EQ(data::token_type_for_vocab(257), data::TokenType::kU16);
  EXPECT_EQ(data::token_type_for_vocab(65499), data::TokenType::kU16);
  EXPECT_EQ(data::token_type_for_vocab(65500), data::TokenType::kI32);
}

TEST(IndexedDataset, RefusesTokensThatDoNotFitTheType) {
  TextFolder folder;
  data::IndexedDatasetWriter writer(folder / "a", data::TokenType::kU16);
  const std::vector<int32_t> large = {65536}, negative = {-1};
  EXPECT_THROW(writer.append(large), InternalError);
  EXPECT_THROW(writer.append(negative), InternalError);
}

TEST(IndexedDataset, AnUnfinishedWriterKeepsTheOldDatasetAndLeavesNoFile) {
  TextFolder folder;
  write_dataset(folder / "a", kGolden);
  {
    data::IndexedDatasetWriter writer(folder / "a", data::TokenType::kI32);
    writer.add_document(std::vector<int32_t>{1, 2, 3});
  }
  EXPECT_EQ(read_dataset(folder / "a"), kGolden);
  EXPECT_FALSE(std::filesystem::exists(folder / "a.bin.tmp"));
  write_dataset(folder / "a", {{9}}, data::TokenType::kI32);  // a finished writer replaces it
  EXPECT_EQ(read_dataset(folder / "a"), (Documents{{9}}));
}

TEST(IndexedDataset, AnEmptyDatasetOpens) {
  TextFolder folder;
  write_dataset(folder / "a", {});
  EXPECT_EQ(data::IndexedDataset(folder / "a").num_documents(), 0);
  EXPECT_EQ(data::IndexedDataset(folder / "a").num_tokens(), 0);
}

TEST(IndexedDataset, EveryTruncationIsRefused) {
  TextFolder folder;
  const std::string index = golden_index();
  for (size_t size = 0; size < index.size(); ++size) {
    write_file(folder / "a.idx", index.substr(0, size));
    write_file(folder / "a.bin", kGoldenTokens);
    TE_EXPECT_CONTAINS(user_error_of([&] { data::IndexedDataset(folder / "a"); }), folder / "a.idx");
  }
  write_file(folder / "a.idx", index);
  for (size_t size = 0; size < kGoldenTokens.size(); ++size) {
    write_file(folder / "a.bin", kGoldenTokens.substr(0, size));
    TE_EXPECT_CONTAINS(user_error_of([&] { data::IndexedDataset(folder / "a"); }), folder / "a.bin");
  }
  write_file(folder / "a.bin", kGoldenTokens + "x");
  TE_EXPECT_CONTAINS(user_error_of([&] { data::IndexedDataset(folder / "a"); }), "has 11 bytes");
}

TEST(IndexedDataset, EveryChangedByteIsRefusedOrReadsInRange) {
  TextFolder folder;
  const std::string index = golden_index();
  write_file(folder / "a.bin", kGoldenTokens);
  int accepted = 0;
  for (size_t at = 0; at < index.size(); ++at) {
    std::vector<unsigned char> values = {0, 0x7f, 0x80, 0xff};
    for (int bit = 0; bit < 8; ++bit) values.push_back(static_cast<unsigned char>(index[at] ^ (1 << bit)));
    for (const unsigned char value : values) {
      std::string damaged = index;
      damaged[at] = static_cast<char>(value);
      if (damaged == index) continue;
      write_file(folder / "a.idx", damaged);
      largest_allocation = 0;
      const std::string error = user_error_of([&] {
        const Documents documents = read_dataset(folder / "a");
        size_t tokens = 0;
        for (const auto& document : documents) tokens += document.size();
        EXPECT_EQ(tokens, kGoldenTokens.size() / 2) << "byte " << at << " = " << int{value};
        ++accepted;
      });
      EXPECT_LT(largest_allocation, 1024u) << "byte " << at << " = " << int{value};
      if (!error.empty()) {
        TE_EXPECT_CONTAINS(error, folder / "a");
      }
    }
  }
  // Three changes result in a valid index: document indices 0 1 2 3 -> 0 0 2 3 (bit 0, and the value 0) and 0 1 3 3.
  EXPECT_EQ(accepted, 3);
}

TEST(IndexedDataset, HugeCountsAreRefusedWithoutAllocating) {
  TextFolder folder;
  write_file(folder / "a.bin", kGoldenTokens);
  for (const size_t field : {18, 26}) {
    for (const uint64_t count :
         {uint64_t{1} << 60, ~uint64_t{0}, (uint64_t{1} << 62) + 3, uint64_t{1} << 63}) {
      std::string damaged = golden_index();
      std::memcpy(damaged.data() + field, &count, 8);
      write_file(folder / "a.idx", damaged);
      largest_allocation = 0;
      TE_EXPECT_CONTAINS(user_error_of([&] { data::IndexedDataset(folder / "a"); }), "do not fit");
      EXPECT_LT(largest_allocation, 4096u);
    }
  }
}

TEST(IndexedDataset, ErrorsNameTheRuleAndTheRemedy) {
  TextFolder folder;
  TE_EXPECT_CONTAINS(user_error_of([&] { data::IndexedDataset(folder / "none"); }),
                     "none.idx: cannot be opened");
  write_dataset(folder / "a", kGolden);
  TE_EXPECT_CONTAINS(user_error_of([&] { data::IndexedDataset(folder / "a.bin"); }), "without .bin or .idx");
  // Opening does not wait for a writer of the pipe.
  ASSERT_EQ(::mkfifo((folder / "pipe.idx").c_str(), 0666), 0);
  TE_EXPECT_CONTAINS(user_error_of([&] { data::IndexedDataset(folder / "pipe"); }),
                     "pipe.idx: is not a regular file");
  std::string damaged = golden_index();
  damaged[17] = 7;
  write_file(folder / "a.idx", damaged);
  TE_EXPECT_CONTAINS(user_error_of([&] { data::IndexedDataset(folder / "a"); }),
                     "f32 values, but tokens must be integers");
  damaged = golden_index();
  damaged[9] = 2;
  write_file(folder / "a.idx", damaged);
  TE_EXPECT_CONTAINS(user_error_of([&] { data::IndexedDataset(folder / "a"); }),
                     "has version 2, but only version 1 is supported");
  TE_EXPECT_CONTAINS(user_error_of([&] { data::IndexedDatasetWriter(folder / "", data::TokenType::kU16); }),
                     "is a folder");
}

TEST(IndexedDataset, TokensOutsideTheVocabularyNameDocumentAndToken) {
  TextFolder folder;
  write_dataset(folder / "a", kGolden);
  const data::IndexedDataset dataset(folder / "a");
  std::vector<int32_t> tokens(5);
  const std::string error = user_error_of([&] { dataset.read(1, 4, tokens.data(), 65535); });
  TE_EXPECT_CONTAINS(error, "a.bin: token 2 of document 0 is 65535");
  TE_EXPECT_CONTAINS(error, "below vocab_size = 65535");
  TE_EXPECT_CONTAINS(user_error_of([&] { dataset.read(3, 2, tokens.data(), 256); }),
                     "token 0 of document 2 is 256");
  dataset.read(0, 5, tokens.data(), 65536);
  EXPECT_EQ(tokens, (std::vector<int32_t>{1, 2, 65535, 256, 7}));

  write_dataset(folder / "negative", {{3, -1}}, data::TokenType::kI32);
  TE_EXPECT_CONTAINS(user_error_of([&] { read_dataset(folder / "negative"); }),
                     "token 1 of document 0 is -1");
}

}  // namespace
}  // namespace te
