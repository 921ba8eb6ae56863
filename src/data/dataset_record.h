// The record of a dataset: PREFIX.meta.json next to PREFIX.bin and PREFIX.idx, a JSON object that te-data writes and
// Megatron's tools ignore.
//
//   {"format": "te-train dataset 1",
//    "tokenizer": {"name": "gpt2/tokenizer.json", "hash": "xxh3:84b5...", "vocab_size": 50257, "end_of_document":
//    50256}, "documents": 203, "tokens": 23952868, "largest_token": 50256}
//
// It is valid only for a dataset with the same numbers of documents and tokens. It is optional: datasets without a
// record are scanned instead (dataset_check.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace te::data {

struct TokenizerRecord {
  std::string name;        ///< as passed to te-data
  std::string hash;        ///< see text/tokenizer_hash.h
  int64_t vocab_size = 0;  ///< the largest id + 1
  /// Id of the token between documents; nullopt for a dataset whose documents are not separated by one token.
  std::optional<int64_t> end_of_document;
};

struct DatasetRecord {
  TokenizerRecord tokenizer;
  int64_t documents = 0, tokens = 0;
  int64_t largest_token = -1;  ///< largest id in the dataset; -1 for a dataset without tokens
};

std::string dataset_record_path(const std::string& prefix);  ///< PREFIX.meta.json

/// Reads the record of a dataset; nullopt if the file does not exist. UserError if it is not a valid record.
std::optional<DatasetRecord> read_dataset_record(const std::string& prefix);

/// The text of the file.
std::string to_json(const DatasetRecord& record);

}  // namespace te::data
