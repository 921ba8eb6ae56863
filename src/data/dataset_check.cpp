#include "data/dataset_check.h"

#include <algorithm>

#include "core/error.h"
#include "core/log.h"
#include "data/chunks.h"

namespace te::data {
namespace {

// With kMaxChunks, a check reads at most 2^24 tokens, in 256 reads.
constexpr int64_t kChunkTokens = int64_t{1} << 16;

/// Reads parts of the dataset; read() refuses a token that is too large.
void scan_tokens(const IndexedDataset& dataset, int64_t vocab_size) {
  std::vector<int32_t> values(static_cast<size_t>(std::min(dataset.num_tokens(), kChunkTokens)));
  for_each_chunk(dataset.num_tokens(), kChunkTokens, [&](int64_t begin, int64_t count) {
    dataset.read(begin, count, values.data(), vocab_size);
  });
}

void check_tokens(const std::string& key, const IndexedDataset& dataset,
                  const std::optional<DatasetRecord>& record, int64_t vocab_size) {
  if (!record) return scan_tokens(dataset, vocab_size);
  if (record->largest_token < vocab_size) return;
  user_error(
      "{}: {} contains token {}, which must be below the model's vocab_size = {}; use the vocabulary of the "
      "tokenizer that the data was created with, {} with {} tokens",
      key, dataset.prefix(), record->largest_token, vocab_size, record->tokenizer.name,
      record->tokenizer.vocab_size);
}

std::string end_text(const std::optional<int64_t>& token) {
  return token ? fmt::format("token {}", *token) : "no token";
}

/// Compares the dataset's tokenizer with the model's or, if that is unknown, with that of the first dataset.
void check_tokenizer(const std::string& key, const std::string& prefix, const TokenizerRecord& created_by,
                     DatasetCheck& check) {
  if (check.any_tokenizer) return;
  if (!check.tokenizer) {
    check.tokenizer = created_by;
    check.tokenizer_key = fmt::format("{}: {}", key, prefix);
  }
  const TokenizerRecord& wanted = *check.tokenizer;
  if (created_by.hash != wanted.hash) {
    user_error(
        "{}: {} was created with the tokenizer {} ({} tokens, {}), which differs from the tokenizer of {}, "
        "{} ({} tokens, {}); name the same tokenizer, create the dataset again with te-data, or {}",
        key, prefix, created_by.name, created_by.vocab_size, created_by.hash, check.tokenizer_key,
        wanted.name, wanted.vocab_size, wanted.hash, check.any_tokenizer_remedy);
  }
  if (created_by.end_of_document != wanted.end_of_document) {
    log_warning("{}: {} ends documents with {}, but {} with {}", key, prefix,
                end_text(created_by.end_of_document), check.tokenizer_key, end_text(wanted.end_of_document));
  }
}

}  // namespace

std::optional<DatasetRecord> matching_record(const IndexedDataset& dataset) {
  std::optional<DatasetRecord> record = read_dataset_record(dataset.prefix());
  if (!record) return record;
  if (record->documents == dataset.num_documents() && record->tokens == dataset.num_tokens()) return record;
  log_warning(
      "{}: describes a dataset with {} documents and {} tokens, but {} has {} and {}; the record is ignored, "
      "remove it",
      dataset_record_path(dataset.prefix()), record->documents, record->tokens, dataset.prefix(),
      dataset.num_documents(), dataset.num_tokens());
  return {};
}

std::vector<DatasetFingerprint> check_datasets(const std::string& key,
                                               const std::vector<std::string>& prefixes,
                                               DatasetCheck& check) {
  TE_CHECK(check.vocab_size > 0, "{}: vocab_size {}", key, check.vocab_size);
  std::vector<DatasetFingerprint> fingerprints;
  for (const std::string& prefix : prefixes) {
    try {
      const IndexedDataset dataset(prefix);
      dataset.check_documents();
      const std::optional<DatasetRecord> record = matching_record(dataset);
      if (record) check_tokenizer(key, prefix, record->tokenizer, check);
      check_tokens(key, dataset, record, check.vocab_size);
      fingerprints.push_back(fingerprint_of(dataset));
    } catch (const UserError& error) {  // errors of the dataset name its path; add the config key
      const std::string_view message = error.what();
      if (message.starts_with(key)) throw;
      user_error("{}: {}", key, message);
    }
  }
  return fingerprints;
}

}  // namespace te::data
