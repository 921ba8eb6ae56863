// Parsing is event-driven (SAX): it stops at the first value of a wrong type, detects duplicate names (a DOM would
// silently keep the last one), and does not build a tree of input that is nested maliciously.
#include "checkpoint/safetensors_header.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <tuple>
#include <unordered_set>

#include "core/error.h"
#include "core/json.h"

namespace te::safetensors {
namespace {

using nlohmann::json;

constexpr const char* kFetchAgain =
    "the file is damaged or not a safetensors file, download or write it again";
constexpr std::string_view kMetadataKey = "__metadata__";

struct FileDType {
  std::string_view name;
  uint64_t size;
  std::optional<DType> dtype;
};

/// In the order of safetensors' own list; its writer sorts tensors by the reverse order.
constexpr std::array kFileDTypes = {
    FileDType{"BOOL", 1, std::nullopt},   FileDType{"U8", 1, DType::u8},
    FileDType{"I8", 1, std::nullopt},     FileDType{"F8_E5M2", 1, DType::e5m2},
    FileDType{"F8_E4M3", 1, DType::e4m3}, FileDType{"F8_E8M0", 1, std::nullopt},
    FileDType{"I16", 2, std::nullopt},    FileDType{"U16", 2, DType::u16},
    FileDType{"F16", 2, std::nullopt},    FileDType{"BF16", 2, DType::bf16},
    FileDType{"I32", 4, DType::i32},      FileDType{"U32", 4, std::nullopt},
    FileDType{"F32", 4, DType::f32},      FileDType{"F64", 8, std::nullopt},
    FileDType{"I64", 8, DType::i64},      FileDType{"U64", 8, std::nullopt},
};

const FileDType* find_file_dtype(std::string_view name) {
  const auto* found = std::ranges::find(kFileDTypes, name, &FileDType::name);
  return found == kFileDTypes.end() ? nullptr : found;
}

const FileDType& file_dtype_of(DType dtype) {
  const auto* found = std::ranges::find(kFileDTypes, dtype, &FileDType::dtype);
  TE_CHECK(found != kFileDTypes.end(), "dtype {} has no name in safetensors files", dtype_name(dtype));
  return *found;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

/// Bytes of a dense tensor; empty if the number overflows 64 bits.
std::optional<uint64_t> tensor_bytes(const std::vector<int64_t>& shape, uint64_t element_size) {
  uint64_t bytes = element_size;
  for (int64_t dim : shape) {
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(dim), &bytes)) return std::nullopt;
  }
  return bytes;
}

/// Turns the parser's events into a Header. Throws UserError at the first event that the format does not allow.
class HeaderEvents final : public nlohmann::json_sax<json> {
 public:
  HeaderEvents(const std::string& file, Header& header) : file_(file), header_(header) {}

  bool null() override { return misplaced("null"); }
  bool boolean(bool) override { return misplaced("a boolean"); }
  bool number_integer(number_integer_t) override { return misplaced("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return misplaced("a fraction or too large a number");
  }
  bool binary(binary_t&) override { return misplaced("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (state_ == ParseState::shape) {
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
        return misplaced("too large a number");
      tensor_.shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (state_ != ParseState::offsets || offset_count_ == 2) return misplaced("a number");
    (offset_count_++ == 0 ? tensor_.begin : tensor_.end) = value;
    return true;
  }

  bool string(string_t& text) override {
    if (state_ == ParseState::metadata) {
      header_.metadata[key_] = text;
      return true;
    }
    if (state_ != ParseState::tensor || key_ != "dtype") return misplaced("text");
    const FileDType* type = find_file_dtype(text);
    if (type == nullptr) {
      user_error("{}: tensor {}: unknown dtype {}; convert the tensor to F32 or BF16", file_,
                 quote_name(tensor_.name), quote_name(text));
    }
    tensor_.file_dtype = type->name;
    tensor_.dtype = type->dtype;
    return true;
  }

  bool start_object(std::size_t) override {
    if (state_ == ParseState::file) {
      state_ = ParseState::header;
    } else if (state_ == ParseState::header) {
      state_ = key_ == kMetadataKey ? ParseState::metadata : ParseState::tensor;
      tensor_ = {};
      tensor_.name = key_;
      fields_ = {};
      offset_count_ = 0;
      metadata_keys_.clear();
    } else {
      return misplaced("an object");
    }
    return true;
  }

  bool end_object() override {
    if (state_ == ParseState::tensor) {
      for (size_t field = 0; field < kFields.size(); ++field) {
        if (!fields_[field])
          user_error("{}: tensor {}: {} is missing; {}", file_, quote_name(tensor_.name), kFields[field],
                     kFetchAgain);
      }
      header_.tensors.push_back(std::move(tensor_));
    }
    state_ = state_ == ParseState::header ? ParseState::file : ParseState::header;
    return true;
  }

  bool start_array(std::size_t) override {
    if (state_ != ParseState::tensor || (key_ != "shape" && key_ != "data_offsets"))
      return misplaced("a list");
    state_ = key_ == "shape" ? ParseState::shape : ParseState::offsets;
    return true;
  }

  bool end_array() override {
    if (state_ == ParseState::offsets && offset_count_ != 2)
      return misplaced("a list of fewer than two numbers");
    state_ = ParseState::tensor;
    return true;
  }

  bool key(string_t& name) override {
    key_ = name;
    if (state_ == ParseState::header) {
      if (!names_.insert(name).second)
        user_error("{}: tensor {}: the name occurs twice; {}", file_, quote_name(name), kFetchAgain);
    } else if (state_ == ParseState::metadata) {
      if (!metadata_keys_.insert(name).second)
        user_error("{}: {}: the key {} occurs twice; {}", file_, kMetadataKey, quote_name(name), kFetchAgain);
    } else {
      const auto* field = std::ranges::find(kFields, name);
      if (field == kFields.end() || std::exchange(fields_[field - kFields.begin()], true)) {
        user_error("{}: tensor {}: the key {} is {}; {}", file_, quote_name(tensor_.name), quote_name(name),
                   field == kFields.end() ? "not part of the format" : "given twice", kFetchAgain);
      }
    }
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const json::exception&) override {
    user_error("{}: header: not valid JSON at byte {}; {}", file_, position, kFetchAgain);
  }

 private:
  enum class ParseState { file, header, metadata, tensor, shape, offsets };
  static constexpr std::array<std::string_view, 3> kFields = {"dtype", "shape", "data_offsets"};

  [[noreturn]] bool misplaced(const char* what) const {
    if (state_ == ParseState::file)
      user_error("{}: header: {} instead of an object; {}", file_, what, kFetchAgain);
    if (state_ == ParseState::header)
      user_error("{}: tensor {}: {} instead of an object; {}", file_, quote_name(key_), what, kFetchAgain);
    if (state_ == ParseState::metadata)
      user_error("{}: {}: {} is {}, must be text; {}", file_, kMetadataKey, quote_name(key_), what,
                 kFetchAgain);
    const char* rule = key_ == "dtype"   ? "must be text"
                       : key_ == "shape" ? "must be a list of whole numbers >= 0"
                                         : "must be a list of two whole numbers >= 0";
    user_error("{}: tensor {}: {} has {}, {}; {}", file_, quote_name(tensor_.name), key_, what, rule,
               kFetchAgain);
  }

  const std::string& file_;
  Header& header_;
  ParseState state_ = ParseState::file;
  std::string key_;
  HeaderTensor tensor_;
  std::array<bool, 3> fields_{};
  int offset_count_ = 0;
  std::unordered_set<std::string> names_, metadata_keys_;
};

/// Checks the byte count of each tensor, and that all tensors together cover the data without overlap or gap.
void check_ranges(const std::string& file, const std::vector<HeaderTensor>& tensors, uint64_t data_bytes) {
  uint64_t covered = 0;
  for (const HeaderTensor& tensor : tensors) {
    const std::string name = quote_name(tensor.name);
    if (tensor.begin > tensor.end || tensor.end > data_bytes) {
      user_error("{}: tensor {}: data_offsets [{}, {}] are outside the file's {} bytes of data; {}", file,
                 name, tensor.begin, tensor.end, data_bytes, kFetchAgain);
    }
    const auto bytes = tensor_bytes(tensor.shape, find_file_dtype(tensor.file_dtype)->size);
    if (bytes != tensor.end - tensor.begin) {
      user_error("{}: tensor {}: {} of shape {} needs {} bytes, but data_offsets span {}; {}", file, name,
                 tensor.file_dtype, shape_text(tensor.shape),
                 bytes ? fmt::to_string(*bytes) : "more than 2^64", tensor.end - tensor.begin, kFetchAgain);
    }
    if (tensor.begin != covered) {
      user_error("{}: tensor {}: data_offsets begin at {} instead of {}, so tensors {}; {}", file, name,
                 tensor.begin, covered, tensor.begin < covered ? "overlap" : "leave a gap", kFetchAgain);
    }
    covered = tensor.end;
  }
  if (covered != data_bytes) {
    user_error("{}: the tensors end after {} bytes of data, but {} follow the header; {}", file, covered,
               data_bytes, kFetchAgain);
  }
}

}  // namespace

std::string_view file_dtype_name(DType dtype) {
  return file_dtype_of(dtype).name;
}

std::optional<DType> dtype_of(std::string_view file_dtype) {
  const FileDType* type = find_file_dtype(file_dtype);
  return type == nullptr ? std::nullopt : type->dtype;
}

std::string quote_name(std::string_view name) {
  constexpr size_t kLongest = 80;
  const bool truncated = name.size() > kLongest;
  // Control characters and non-ASCII characters are escaped, so that a message stays one line.
  std::string text = dump_json(json(std::string(name.substr(0, kLongest))), -1, true);
  return truncated ? text.insert(text.size() - 1, "...") : text;
}

Header parse_header(const std::string& file, std::string_view text, uint64_t data_bytes) {
  // The parser would treat a NUL as the end of the text, and skip leading white space and a byte order mark.
  const size_t last = text.find_last_not_of(" \t\r\n");
  if (text.empty() || text.front() != '{' || text[last] != '}' || text.find('\0') != text.npos)
    user_error("{}: header: must be a JSON object from '{{' to '}}'; {}", file, kFetchAgain);
  Header header;
  HeaderEvents events(file, header);
  json::sax_parse(text.begin(), text.end(), &events);
  std::ranges::sort(header.tensors, [](const HeaderTensor& a, const HeaderTensor& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  check_ranges(file, header.tensors, data_bytes);
  return header;
}

Header plan_header(const std::vector<SafetensorsSpec>& specs, const SafetensorsMetadata& metadata) {
  std::vector<const SafetensorsSpec*> order;
  for (const SafetensorsSpec& spec : specs) order.push_back(&spec);
  std::ranges::sort(order, [](const SafetensorsSpec* a, const SafetensorsSpec* b) {
    const auto* rank_a = &file_dtype_of(a->dtype);
    const auto* rank_b = &file_dtype_of(b->dtype);
    return rank_a != rank_b ? rank_a > rank_b : a->name < b->name;
  });
  Header header{.metadata = metadata, .tensors = {}};
  uint64_t offset = 0;
  for (const SafetensorsSpec* spec : order) {
    TE_CHECK(spec->name != kMetadataKey, "{} is not a valid name of a tensor", kMetadataKey);
    for (int64_t dim : spec->shape)
      TE_CHECK(dim >= 0, "tensor {}: negative size in shape {}", spec->name, shape_text(spec->shape));
    const FileDType& type = file_dtype_of(spec->dtype);
    const auto bytes = tensor_bytes(spec->shape, type.size);
    uint64_t end = 0;
    TE_CHECK(bytes && !__builtin_add_overflow(offset, *bytes, &end), "tensor {}: shape {} overflows 64 bits",
             spec->name, shape_text(spec->shape));
    header.tensors.push_back({spec->name, type.name, spec->dtype, spec->shape, offset, end});
    offset = end;
  }
  return header;
}

std::string header_text(const Header& header) {
  std::string text = "{";
  if (!header.metadata.empty()) text += fmt::format("\"{}\":{}", kMetadataKey, json(header.metadata).dump());
  std::unordered_set<std::string> names;
  for (const HeaderTensor& tensor : header.tensors) {
    TE_CHECK(names.insert(tensor.name).second, "tensor {} occurs twice", tensor.name);
    if (text.size() > 1) text += ',';
    text += json(tensor.name).dump() + fmt::format(R"(:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                                                   tensor.file_dtype, fmt::join(tensor.shape, ","),
                                                   tensor.begin, tensor.end);
  }
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

}  // namespace te::safetensors
