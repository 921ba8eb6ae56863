// What a dataset says of itself: PREFIX.meta.json beside PREFIX.bin and PREFIX.idx, a JSON object that te-data writes
// and Megatron's tools do not look at.
//
//   {"format": "te-train dataset 1",
//    "tokenizer": {"name": "gpt2/tokenizer.json", "hash": "xxh3:84b5...", "vocab_size": 50257, "end_of_document":
//    50256}, "documents": 203, "tokens": 23952868, "largest_token": 50256}
//
// It belongs to a dataset that has so many documents and tokens. Datasets without one are as good; they are looked
// through instead (dataset_check.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace te::data {

struct TokenizerRecord {
  std::string name;             ///< as it was given to te-data
  std::string hash;             ///< of what it does: text/tokenizer_hash.h
  int64_t vocab_size = 0;       ///< its largest id + 1
  int64_t end_of_document = 0;  ///< id
};

struct DatasetRecord {
  TokenizerRecord tokenizer;
  int64_t documents = 0, tokens = 0;
  int64_t largest_token = -1;  ///< that occurs; -1 in a dataset without tokens
};

std::string dataset_record_path(const std::string& prefix);  ///< PREFIX.meta.json

/// None where there is no such file. UserError for a file that is no such record.
std::optional<DatasetRecord> read_dataset_record(const std::string& prefix);

/// The text of the file.
std::string to_json(const DatasetRecord& record);

}  // namespace te::data
