// Datasets that do not fit the model: made with another tokenizer, or with token IDs beyond the vocabulary.
#include "data/dataset_record.h"
#include "te_train_testing.h"
#include "text/tokenizer.h"
#include "text/tokenizer_hash.h"

namespace te {
namespace {

using testing::Documents;
using testing::expect_refused;
using testing::Result;
using testing::TrainFolder;
using testing::write_dataset;

class DataCheck : public ::testing::Test {
 protected:
  static data::TokenizerRecord bytes() {
    const auto tokenizer = text::make_tokenizer("bytes");
    return {.name = "bytes",
            .hash = text::tokenizer_hash(*tokenizer),
            .vocab_size = tokenizer->vocab_size(),
            .end_of_document = tokenizer->end_of_document()};
  }
  static data::TokenizerRecord other() {
    return {.name = "other/tokenizer.json", .hash = "xxh3:0", .vocab_size = 200, .end_of_document = 3};
  }
  /// A dataset in this folder, with a record.
  std::string described(const std::string& name, const Documents& documents,
                        const data::TokenizerRecord& tokenizer) const {
    data::IndexedDatasetWriter writer(folder_ / name, data::TokenType::kU16);
    for (const auto& document : documents) writer.add_document(document);
    writer.describe(tokenizer);
    writer.finish();
    return folder_ / name;
  }
  /// A dataset with a wrong record, so that the run meets an unexpected token.
  std::string with_hidden_token(const std::string& name, int64_t documents, int32_t token) const {
    Documents all(static_cast<size_t>(documents), std::vector<int32_t>(150, 7));
    all.push_back(std::vector<int32_t>(150, token));
    const std::string prefix = described(name, all, bytes());
    std::optional<data::DatasetRecord> record = data::read_dataset_record(prefix);
    EXPECT_EQ(record->largest_token, token);
    record->largest_token = 7;
    testing::write_file(data::dataset_record_path(prefix), data::to_json(*record));
    return prefix;
  }
  TrainFolder folder_;
  const Documents documents_ = Documents(20, std::vector<int32_t>(50, 9));
};

TEST_F(DataCheck, DatasetOfAnotherTokenizerIsRefusedUnlessAllowed) {
  const std::string train = described("other", documents_, other());
  const std::vector<std::string> overrides = {"data.train=" + train, "data.tokenizer=bytes"};
  const Result result = folder_.run("a", overrides);
  expect_refused(result, "data.train: " + train +
                             " was created with the tokenizer other/tokenizer.json (200 tokens, xxh3:0), " +
                             "which differs from the tokenizer of data.tokenizer, bytes (257 tokens, " +
                             bytes().hash + ")");
  TE_EXPECT_CONTAINS(result.error, "or set data.check to false");
  EXPECT_FALSE(std::filesystem::exists(folder_.run_folder("a") + "/loss.csv"));
  EXPECT_EQ(folder_.run("a", {overrides[0], overrides[1], "data.check=false"}).code, 0);
}

// The cause is named, although the first validation sample has a token beyond the vocabulary.
TEST_F(DataCheck, ValidationDatasetOfAnotherTokenizerIsRefused) {
  const std::string valid = described("other", Documents(20, std::vector<int32_t>(50, 5000)), other());
  expect_refused(
      folder_.run("a", {"data.valid=" + valid, "data.tokenizer=bytes", "training.eval_interval=2"}),
      "data.valid: " + valid + " was created with the tokenizer other/tokenizer.json");
}

TEST_F(DataCheck, MatchingTokenizerAndDatasetsWithoutRecordTrain) {
  const Result result =
      folder_.run("a", {"data.train=" + described("mine", documents_, bytes()), "data.tokenizer=bytes"});
  EXPECT_EQ(result.code, 0) << result.error;  // `valid` has no record
  EXPECT_EQ(result.error, "");
}

TEST_F(DataCheck, DatasetsOfTwoTokenizersAreRefusedWithoutTokenizerKey) {
  const std::string a = described("a", documents_, other()), b = described("b", documents_, bytes());
  expect_refused(folder_.run("a", {"data.train=" + a, "data.valid=" + b, "training.eval_interval=2"}),
                 "data.valid: " + b + " was created with the tokenizer bytes");
}

TEST_F(DataCheck, TokensOutOfRangeAreFoundBeforeTheFirstStep) {
  // With a record, without one, and in the validation set.
  const Documents large(3, std::vector<int32_t>(90, 300));
  expect_refused(
      folder_.run("a", {"data.train=" + described("large", large, other())}),
      "contains token 300, which must be below the model's vocab_size = 257; use the vocabulary of the "
      "tokenizer that the data was created with, other/tokenizer.json with 200 tokens");
  Documents odd(40, std::vector<int32_t>(50, 7));
  odd[31][4] = 257;
  write_dataset(folder_ / "odd", odd);
  const std::string message =
      ": " + (folder_ / "odd") + ".bin: token 4 of document 31 is 257, but must be at least 0";
  expect_refused(folder_.run("a", {"data.train=" + (folder_ / "odd")}), "data.train" + message);
  expect_refused(folder_.run("a", {"data.valid=" + (folder_ / "odd"), "training.eval_interval=2"}),
                 "data.valid" + message);
  EXPECT_FALSE(std::filesystem::exists(folder_.run_folder("a") + "/loss.csv"));
}

// A dataset too large to be checked completely: both ends and samples between them are checked.
TEST_F(DataCheck, LargeDatasetIsCheckedInParts) {
  constexpr int64_t kTokens = int64_t{20} << 20;
  Documents one(1, std::vector<int32_t>(kTokens, 7));
  for (const int64_t at : {int64_t{0}, kTokens - 1, (kTokens - 65536) / 255 * 128 + 200}) {
    one[0][static_cast<size_t>(at)] = 400;
    write_dataset(folder_ / "big", one);
    expect_refused(folder_.run("a", {"data.train=" + (folder_ / "big")}),
                   "token " + std::to_string(at) + " of document 0 is 400");
    one[0][static_cast<size_t>(at)] = 7;
  }
}

TEST_F(DataCheck, TokenOutOfRangeEndsTheRunAfterACheckpoint) {
  const std::string train = with_hidden_token("hidden", 100, 300);
  expect_refused(
      folder_.run("a", {"data.train=" + train, "training.train_steps=300"}),
      "hidden.bin: token 0 of document 100 is 300, but must be at least 0 and below vocab_size = 257");
  const auto steps = static_cast<int64_t>(folder_.csv("a").size());
  EXPECT_GT(steps, 0);
  EXPECT_TRUE(std::filesystem::exists(folder_.checkpoint("a", steps) + "/manifest.json")) << steps;
}

// One of two data-parallel ranks reads the token.
TEST_F(DataCheck, TokenOutOfRangeInTheValidationSetDoes) {
  folder_.use_ranks(2);
  const std::string valid = with_hidden_token("hidden", 1, 300);
  const Result result = folder_.run("a", {"data.valid=" + valid, "training.eval_interval=3"});
  EXPECT_EQ(result.code, 2);
  TE_EXPECT_CONTAINS(result.error, "of document 1 is 300, but must be at least 0");
  EXPECT_EQ(folder_.csv("a").size(), 3u);
  EXPECT_TRUE(std::filesystem::exists(folder_.checkpoint("a", 3) + "/manifest.json"));
}

TEST_F(DataCheck, UnusedLossMaskIsReported) {
  const std::string train = described("masked", documents_, bytes());
  write_dataset(train + "_mask", Documents(20, std::vector<int32_t>(50, 1)));
  const Result result = folder_.run("a", {"data.train=" + train, "data.tokenizer=bytes"});
  EXPECT_EQ(result.code, 0) << result.error;
  TE_EXPECT_CONTAINS(result.out, "masked has a loss mask, which data.format: pretrain does not use");
}

TEST_F(DataCheck, RecordOfAnotherDatasetIsIgnored) {
  const std::string train = described("made_again", {{1, 2, 3}}, other());
  const std::string record = testing::read_file(data::dataset_record_path(train));
  write_dataset(train, documents_);  // deletes the record
  EXPECT_FALSE(std::filesystem::exists(data::dataset_record_path(train)));
  testing::write_file(data::dataset_record_path(train), record);
  const Result result = folder_.run("a", {"data.train=" + train, "data.tokenizer=bytes"});
  EXPECT_EQ(result.code, 0);
  TE_EXPECT_CONTAINS(result.out + result.error,
                     "made_again.meta.json: describes a dataset with 1 documents and 3 tokens");
}

}  // namespace
}  // namespace te
