// The header of a safetensors file as text: parses and validates a header, and creates a new one. Private to
// src/checkpoint; safetensors.cpp handles files and mappings.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/safetensors.h"

namespace te::safetensors {

/// Longer headers are refused, as in Python's safetensors.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;

struct HeaderTensor {
  std::string name;
  std::string_view file_dtype;
  std::optional<DType> dtype;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  ///< byte range relative to the end of the header
};

struct Header {
  SafetensorsMetadata metadata;
  std::vector<HeaderTensor> tensors;  ///< sorted by begin, then end
};

/// Parses and validates a header. `file` names the file in errors; `data_bytes` is the file's size after the header.
Header parse_header(const std::string& file, std::string_view text, uint64_t data_bytes);

/// Assigns byte ranges, wide types first, then by name.
Header plan_header(const std::vector<SafetensorsSpec>& specs, const SafetensorsMetadata& metadata);

/// The JSON text, padded with spaces to a multiple of 8 bytes.
std::string header_text(const Header& header);

/// The format's name of a dtype ("F32"), and the inverse, which is empty if te-train cannot read the type.
std::string_view file_dtype_name(DType dtype);
std::optional<DType> dtype_of(std::string_view file_dtype);

/// A name in quotes, escaped and shortened to about 80 characters, for error messages.
std::string quote_name(std::string_view name);

}  // namespace te::safetensors
