// Comma-separated values (RFC 4180): fields in quotes may hold commas, line breaks and doubled quotes.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace te::generate {

struct CsvRow {
  std::vector<std::string> fields;
  std::string place;  ///< "FILE:LINE" of its first line
};

/// All rows, a header being one like any other; empty lines are left out. UserError when a quoted field does not end.
std::vector<CsvRow> read_csv(const std::filesystem::path& file);

}  // namespace te::generate
