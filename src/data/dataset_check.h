// Are these datasets the model's? A run that reads another tokenizer's tokens, or tokens that the model does not have,
// looks like any other for hours; so the datasets are checked before the first step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/dataset_fingerprint.h"
#include "data/dataset_record.h"

namespace te::data {

struct DatasetCheck {
  int64_t vocab_size = 0;  ///< of the model; every token must be below it
  std::optional<TokenizerRecord>
      tokenizer;                     ///< the model's; without it the datasets are compared with one another
  std::string tokenizer_key;         ///< what has named it, for errors
  bool any_tokenizer = false;        ///< leave out the comparison of tokenizers
  std::string any_tokenizer_remedy;  ///< how to leave it out: "set data.check_tokenizer to false"
};

/// The datasets of one key, such as data.train. Tokens are checked by what a dataset's record says; one without a
/// record is looked through: the whole of it up to 2^24 tokens, else 256 pieces, evenly spread, first and last tokens
/// among them. Every document's place in the index is checked. UserError, one line with key, dataset and remedy. A
/// record that is not the dataset's is warned of, and left aside. Returns what the datasets are known by.
std::vector<DatasetFingerprint> check_datasets(const std::string& key,
                                               const std::vector<std::string>& prefixes, DatasetCheck& check);

}  // namespace te::data
