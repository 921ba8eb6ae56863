#include "data/dataset_check.h"

#include <algorithm>

#include "core/error.h"
#include "core/log.h"
#include "data/indexed_dataset.h"
#include "data/pieces.h"

namespace te::data {
namespace {

// 16 million tokens: 30 ms from memory, and 256 reads from a disk.
constexpr int64_t kPieceTokens = int64_t{1} << 16;

/// The dataset's record, unless it is another dataset's: one that was made again by a program that does not know of it.
std::optional<DatasetRecord> record_of(const IndexedDataset& dataset) {
  std::optional<DatasetRecord> record = read_dataset_record(dataset.prefix());
  if (!record) return record;
  if (record->documents == dataset.num_documents() && record->tokens == dataset.num_tokens()) return record;
  spdlog::warn(
      "{}: is of a dataset with {} documents and {} tokens, {} has {} and {}: it is left aside; remove it",
      dataset_record_path(dataset.prefix()), record->documents, record->tokens, dataset.prefix(),
      dataset.num_documents(), dataset.num_tokens());
  return {};
}

/// Reads it in pieces; read() refuses a token that is too large.
void look_through(const IndexedDataset& dataset, int64_t vocab_size) {
  std::vector<int32_t> values(static_cast<size_t>(std::min(dataset.num_tokens(), kPieceTokens)));
  for_each_piece(dataset.num_tokens(), kPieceTokens, [&](int64_t begin, int64_t count) {
    dataset.read(begin, count, values.data(), vocab_size);
  });
}

void check_tokens(const std::string& key, const IndexedDataset& dataset,
                  const std::optional<DatasetRecord>& record, int64_t vocab_size) {
  if (!record) return look_through(dataset, vocab_size);
  if (record->largest_token < vocab_size) return;
  user_error(
      "{}: {} holds token {}, it must be below the model's vocab_size = {}; use the vocabulary of the "
      "tokenizer "
      "that made the data, {} with {} tokens",
      key, dataset.prefix(), record->largest_token, vocab_size, record->tokenizer.name,
      record->tokenizer.vocab_size);
}

/// The first dataset stands for the model's tokenizer where that is not known.
void check_tokenizer(const std::string& key, const std::string& prefix, const TokenizerRecord& made_by,
                     DatasetCheck& check) {
  if (check.any_tokenizer) return;
  if (!check.tokenizer) {
    check.tokenizer = made_by;
    check.tokenizer_key = fmt::format("{}: {}", key, prefix);
  }
  const TokenizerRecord& wanted = *check.tokenizer;
  if (made_by.hash != wanted.hash) {
    user_error(
        "{}: {} was made with the tokenizer {} ({} tokens, {}), which is not that of {}, {} ({} tokens, {}); "
        "name "
        "the same tokenizer, make the dataset again with te-data, or {}",
        key, prefix, made_by.name, made_by.vocab_size, made_by.hash, check.tokenizer_key, wanted.name,
        wanted.vocab_size, wanted.hash, check.any_tokenizer_remedy);
  }
  if (made_by.end_of_document != wanted.end_of_document) {
    spdlog::warn("{}: {} ends documents with token {}, {} with {}", key, prefix, made_by.end_of_document,
                 check.tokenizer_key, wanted.end_of_document);
  }
}

}  // namespace

std::vector<DatasetFingerprint> check_datasets(const std::string& key,
                                               const std::vector<std::string>& prefixes,
                                               DatasetCheck& check) {
  TE_CHECK(check.vocab_size > 0, "{}: vocab_size {}", key, check.vocab_size);
  std::vector<DatasetFingerprint> fingerprints;
  for (const std::string& prefix : prefixes) {
    try {
      const IndexedDataset dataset(prefix);
      dataset.check_documents();
      const std::optional<DatasetRecord> record = record_of(dataset);
      if (record) check_tokenizer(key, prefix, record->tokenizer, check);
      check_tokens(key, dataset, record, check.vocab_size);
      fingerprints.push_back(fingerprint_of(dataset));
    } catch (const UserError& error) {  // a dataset knows its path, not the key that has named it
      const std::string_view message = error.what();
      if (message.starts_with(key)) throw;
      user_error("{}: {}", key, message);
    }
  }
  return fingerprints;
}

}  // namespace te::data
