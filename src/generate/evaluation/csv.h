// Comma-separated values (RFC 4180): quoted fields may contain commas, line breaks and doubled quotes.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace te::generate {

struct CsvRow {
  std::vector<std::string> fields;
  std::string place;  ///< "FILE:LINE" of its first line
};

/// All rows, including a header; empty lines are skipped. UserError if a quoted field has no closing quote.
std::vector<CsvRow> read_csv(const std::filesystem::path& file);

}  // namespace te::generate
