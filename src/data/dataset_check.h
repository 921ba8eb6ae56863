// Checks before the first step that datasets match the model. Training on the tokens of another tokenizer, or on tokens
// outside the vocabulary, otherwise goes unnoticed for hours.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/dataset_fingerprint.h"
#include "data/dataset_record.h"
#include "data/indexed_dataset.h"

namespace te::data {

/// The record of a dataset; nullopt if it has none. A record whose counts do not match the dataset is ignored with a
/// warning: a program that does not write records has replaced the dataset. UserError if it is not a valid record.
std::optional<DatasetRecord> matching_record(const IndexedDataset& dataset);

struct DatasetCheck {
  int64_t vocab_size = 0;  ///< the model's; every token must be below it
  /// The model's tokenizer; without it, the datasets are compared with the first one.
  std::optional<TokenizerRecord> tokenizer;
  std::string tokenizer_key;         ///< config key or dataset that defines `tokenizer`, for messages
  bool any_tokenizer = false;        ///< skip the comparison of tokenizers
  std::string any_tokenizer_remedy;  ///< how to skip it, for messages: "set data.check to false"
};

/// Checks the datasets of one config key, such as data.train. The largest token is taken from a dataset's record.
/// Without a record the tokens are scanned: all of them up to 2^24 tokens, else 256 evenly spaced parts that include
/// the first and last tokens. The position of every document in the index is checked. UserError, in one line, with key,
/// dataset and remedy. A record that does not match its dataset is ignored with a warning. Returns the datasets'
/// fingerprints.
std::vector<DatasetFingerprint> check_datasets(const std::string& key,
                                               const std::vector<std::string>& prefixes, DatasetCheck& check);

}  // namespace te::data
