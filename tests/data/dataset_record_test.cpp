// PREFIX.meta.json, the record of a dataset.
#include "data/dataset_record.h"

#include "data_testing.h"
#include "testing/testing.h"

namespace te {
namespace {

using testing::read_file;
using testing::TextFolder;
using testing::user_error_of;
using testing::write_file;

const data::TokenizerRecord kTokenizer = {
    .name = "a \"b\"/tokenizer.json", .hash = "xxh3:12", .vocab_size = 70000, .end_of_document = 2};

TEST(DatasetRecord, IsWrittenAndRead) {
  TextFolder folder;
  data::IndexedDatasetWriter writer(folder / "a", data::TokenType::kI32);
  writer.add_document(std::vector<int32_t>{5, 69999, 2});
  writer.add_document({});
  writer.describe(kTokenizer);
  writer.finish();
  const auto record = data::read_dataset_record(folder / "a");
  ASSERT_TRUE(record.has_value());
  EXPECT_EQ(record->tokenizer.name, kTokenizer.name);
  EXPECT_EQ(record->tokenizer.hash, "xxh3:12");
  EXPECT_EQ(record->tokenizer.vocab_size, 70000);
  EXPECT_EQ(record->tokenizer.end_of_document, 2);
  EXPECT_EQ(record->documents, 2);
  EXPECT_EQ(record->tokens, 3);
  EXPECT_EQ(record->largest_token, 69999);
}

TEST(DatasetRecord, IsReplacedTogetherWithItsDataset) {
  TextFolder folder;
  {
    data::IndexedDatasetWriter writer(folder / "a", data::TokenType::kU16);
    writer.add_document(std::vector<int32_t>{1});
    writer.describe(kTokenizer);
    writer.finish();
  }
  {  // destroyed without finish(): the old dataset is kept
    data::IndexedDatasetWriter writer(folder / "a", data::TokenType::kU16);
    writer.add_document(std::vector<int32_t>{2});
    writer.describe(kTokenizer);
  }
  EXPECT_TRUE(data::read_dataset_record(folder / "a").has_value());
  EXPECT_FALSE(std::filesystem::exists(folder / "a.meta.json.tmp"));
  testing::write_dataset(folder / "a", {{3}});
  EXPECT_FALSE(data::read_dataset_record(folder / "a").has_value());
}

TEST(DatasetRecord, DamagedRecordsAreRefused) {
  TextFolder folder;
  const std::string good =
      data::to_json({.tokenizer = kTokenizer, .documents = 1, .tokens = 2, .largest_token = 3});
  const auto error = [&](const std::string& text) {
    write_file(folder / "a.meta.json", text);
    return user_error_of([&] { data::read_dataset_record(folder / "a"); });
  };
  TE_EXPECT_CONTAINS(error(good.substr(0, good.size() / 2)), "a.meta.json: is damaged; remove the file");
  TE_EXPECT_CONTAINS(error("[1, 2]"), "is damaged");
  TE_EXPECT_CONTAINS(error("{\"format\": \"x\"}"), "its format is not `te-train dataset 1`");
  TE_EXPECT_CONTAINS(error("{\"format\": \"te-train dataset 1\", \"tokenizer\": {\"name\": 1}}"),
                     "is damaged");
  std::filesystem::remove(folder / "a.meta.json");
  std::filesystem::create_directory(folder / "a.meta.json");
  TE_EXPECT_CONTAINS(user_error_of([&] { data::read_dataset_record(folder / "a"); }),
                     "is not a dataset record");
}

}  // namespace
}  // namespace te
