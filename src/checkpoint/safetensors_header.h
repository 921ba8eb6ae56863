// The header of a safetensors file as text: parsing with every check of the format, and laying out a new one.
// Private to src/checkpoint; files and mappings are the business of safetensors.cpp.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/safetensors.h"

namespace te::safetensors {

/// Longer headers are refused, as Python's safetensors refuses them.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;

struct HeaderTensor {
  std::string name;
  std::string_view file_dtype;
  std::optional<DType> dtype;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  ///< byte range, counted from the end of the header
};

struct Header {
  SafetensorsMetadata metadata;
  std::vector<HeaderTensor> tensors;  ///< by begin, then end
};

/// Parses and validates. `file` names the file in errors, `data_bytes` is what follows the header.
Header parse_header(const std::string& file, std::string_view text, uint64_t data_bytes);

/// Assigns byte ranges, wide types first, then by name.
Header plan_header(const std::vector<SafetensorsSpec>& specs, const SafetensorsMetadata& metadata);

/// The JSON text, padded with spaces to a multiple of 8 bytes.
std::string header_text(const Header& header);

/// The format's name of a dtype ("F32"), and back; empty where te-train has no such type.
std::string_view file_dtype_name(DType dtype);
std::optional<DType> dtype_of(std::string_view file_dtype);

/// A name as one printable, quoted word of at most about 80 characters, for error messages.
std::string quote_name(std::string_view name);

}  // namespace te::safetensors
