// Helpers of the data tests: small datasets.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "data/indexed_dataset.h"
#include "testing/files.h"
#include "testing/temporary_folder.h"

namespace te::testing {

using Documents = std::vector<std::vector<int32_t>>;

inline void write_dataset(const std::string& prefix, const Documents& documents,
                          data::TokenType type = data::TokenType::kU16) {
  data::IndexedDatasetWriter writer(prefix, type);
  for (const auto& document : documents) writer.add_document(document);
  writer.finish();
}

inline Documents read_dataset(const std::string& prefix) {
  const data::IndexedDataset dataset(prefix);
  Documents documents;
  for (int64_t i = 0; i < dataset.num_documents(); ++i) {
    documents.emplace_back(static_cast<size_t>(dataset.document_length(i)));
    dataset.read(dataset.document_begin(i), dataset.document_length(i), documents.back().data());
  }
  return documents;
}

/// `count` documents of different lengths (0 to 2 * mean); the tokens count up from 0, so a token identifies its
/// position.
inline Documents counting_documents(int64_t count, int64_t mean) {
  Documents documents;
  int32_t token = 0;
  for (int64_t i = 0; i < count; ++i) {
    std::vector<int32_t> document(static_cast<size_t>((i * 7919) % (2 * mean + 1)));
    for (int32_t& value : document) value = token++;
    documents.push_back(std::move(document));
  }
  return documents;
}

}  // namespace te::testing
