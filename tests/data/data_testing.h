// Helpers of the data tests: a folder that goes away, whole files as bytes, and errors as text.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "core/error.h"
#include "data/indexed_dataset.h"
#include "testing/temporary_folder.h"

namespace te::testing {

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  ASSERT_TRUE(file.good()) << path;
}

using Documents = std::vector<std::vector<int32_t>>;

inline void write_dataset(const std::string& prefix, const Documents& documents,
                          TokenType type = TokenType::kU16) {
  IndexedDatasetWriter writer(prefix, type);
  for (const auto& document : documents) writer.add_document(document);
  writer.finish();
}

inline Documents read_dataset(const std::string& prefix) {
  const IndexedDataset dataset(prefix);
  Documents documents;
  for (int64_t i = 0; i < dataset.num_documents(); ++i) {
    documents.emplace_back(static_cast<size_t>(dataset.document_length(i)));
    dataset.read(dataset.document_begin(i), dataset.document_length(i), documents.back().data());
  }
  return documents;
}

/// `count` documents of different lengths (0 to 2 * mean); the tokens count up from 0, so each position is
/// known.
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

/// The message of the UserError that body throws; "" when it throws none. It must be one line.
template <class Body>
std::string user_error_of(Body body) {
  try {
    body();
  } catch (const UserError& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message;
  }
  return "";
}

#define TE_EXPECT_CONTAINS(text, part) \
  EXPECT_NE(std::string(text).find(part), std::string::npos) << "the text is: " << (text)

}  // namespace te::testing
