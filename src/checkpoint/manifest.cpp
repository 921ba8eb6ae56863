#include "checkpoint/manifest.h"

#include <xxhash.h>

#include <algorithm>
#include <unordered_map>

#include "checkpoint/manifest_json.h"
#include "checkpoint/progress_json.h"
#include "checkpoint/safetensors_header.h"
#include "core/error.h"
#include "core/file.h"
#include "core/json.h"

namespace te::checkpoint {
namespace {

constexpr const char* kFormat = "te-train checkpoint 2";
constexpr const char* kUseAnother = "use another checkpoint";
constexpr std::string_view kChecksumKey = "  \"manifest_checksum\": \"";
constexpr int64_t kMaxElements = int64_t{1} << 56;

using Json = nlohmann::ordered_json;

std::string hex(uint64_t value) {
  return fmt::format("{:016x}", value);
}

// --- to text -----------------------------------------------------------------------------------------------

Json slice_json(const Slice& slice, const LogicalTensor& tensor) {
  Json json = {{"file", slice.file}};
  if (slice.offset > 0) json["offset"] = slice.offset;
  const Block& block = slice.block;
  if (block.width != tensor.cols()) json["cols"] = {block.col, block.width};
  if (block.first % block.width == 0 && block.count % block.width == 0) {
    if (block.count != tensor.rows() * block.width)
      json["rows"] = {block.first / block.width, block.count / block.width};
  } else {
    json["elements"] = {block.first, block.count};
  }
  return json;
}

Json tensor_json(const LogicalTensor& tensor) {
  Json slices = Json::array();
  for (const Slice& slice : tensor.slices) slices.push_back(slice_json(slice, tensor));
  return {{"name", tensor.name},
          {"dtype", safetensors::file_dtype_name(tensor.dtype)},
          {"shape", tensor.shape},
          {"slices", slices}};
}

Json file_json(const StoredFile& file) {
  Json checksums = Json::object();
  for (const auto& [name, blocks] : file.checksums) {
    Json& list = checksums[name] = Json::array();
    for (const uint64_t block : blocks) list.push_back(hex(block));
  }
  return {{"name", file.name}, {"checksums", checksums}};
}

Json fp8_json(const Fp8Part& part) {
  Json operands = Json::array();
  for (const Fp8Operand& operand : part.operands)
    operands.push_back({operand.name, operand.role, operand.fp8_max});
  return {{"file", part.file}, {"operands", operands}};
}

Json dataset_json(const Dataset& dataset) {
  return {{"key", dataset.key},
          {"prefix", dataset.prefix},
          {"documents", dataset.documents},
          {"tokens", dataset.tokens},
          {"hash", hex(dataset.hash)}};
}

/// A JSON list with one item per line, which can be read and compared with diff.
template <class Item, class ToJson>
std::string list_text(const std::vector<Item>& items, ToJson&& to_json) {
  std::string text = "[";
  for (const Item& item : items) {
    text += text.size() > 1 ? ",\n    " : "\n    ";
    text += dump_json(to_json(item));
  }
  return text + (items.empty() ? "]" : "\n  ]");
}

/// The last lines of a manifest, with the checksum of `body`.
std::string checksum_lines(std::string_view body) {
  return fmt::format("{}{}\"\n}}\n", kChecksumKey, hex(checksum(body.data(), body.size())));
}

// --- from text ---------------------------------------------------------------------------------------------

std::pair<int64_t, int64_t> pair_of(const JsonNode& node, int64_t limit) {
  if (node.size() != 2) node.refuse("must be a list of two numbers");
  return {node.at(0).integer(0, limit), node.at(1).integer(0, limit)};
}

Slice slice_of(const JsonNode& node, const LogicalTensor& tensor, int num_files) {
  Slice slice;
  slice.file = static_cast<int>(node.at("file").integer(0, num_files - 1));
  if (node.has("offset")) slice.offset = node.at("offset").integer(0, kMaxElements);
  Block& block = slice.block;
  block.width = tensor.cols();
  if (node.has("cols")) std::tie(block.col, block.width) = pair_of(node.at("cols"), tensor.cols());
  if (block.width < 1) node.refuse("has no columns");
  if (node.has("elements")) {
    std::tie(block.first, block.count) = pair_of(node.at("elements"), kMaxElements);
  } else {
    std::pair<int64_t, int64_t> rows{0, tensor.rows()};
    if (node.has("rows")) rows = pair_of(node.at("rows"), tensor.rows());
    block.first = rows.first * block.width;
    block.count = rows.second * block.width;
  }
  return slice;
}

LogicalTensor tensor_of(const JsonNode& node, int num_files) {
  LogicalTensor tensor;
  tensor.name = node.at("name").text();
  const auto dtype = safetensors::dtype_of(node.at("dtype").text());
  if (!dtype) node.at("dtype").refuse("is a dtype that te-train does not have");
  tensor.dtype = *dtype;
  int64_t elements = 1;
  const JsonNode shape = node.at("shape");
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    tensor.shape.push_back(shape.at(axis).integer(0, kMaxElements));
    if (__builtin_mul_overflow(elements, std::max<int64_t>(1, tensor.shape.back()), &elements) ||
        elements > kMaxElements)
      shape.refuse("has too many elements");
  }
  tensor.slices =
      node.at("slices").list([&](const JsonNode& slice) { return slice_of(slice, tensor, num_files); });
  return tensor;
}

StoredFile file_of(const JsonNode& node) {
  constexpr const char* kRule = "must be the name of a file in the checkpoint's folder";
  StoredFile file;
  file.name = node.at("name").file_name(kRule);
  if (file.name.empty()) node.at("name").refuse(kRule);
  const JsonNode checksums = node.at("checksums");
  for (const std::string& name : checksums.keys())
    file.checksums[name] = checksums.at(name).list([](const JsonNode& block) { return block.hex64(); });
  return file;
}

Fp8Part fp8_of(const JsonNode& node, int num_files) {
  const auto operand_of = [](const JsonNode& operand) -> Fp8Operand {
    if (operand.size() != 3) operand.refuse("must be [linear, role, fp8_max]");
    return {operand.at(0).text(), operand.at(1).text(), operand.at(2).positive_float()};
  };
  return {.file = static_cast<int>(node.at("file").integer(0, num_files - 1)),
          .operands = node.at("operands").list(operand_of)};
}

/// What is wrong with a tensor's slices; nullptr if they cover the tensor exactly.
const char* slices_fault(const LogicalTensor& tensor) {
  std::vector<Block> blocks;
  int64_t held = 0;
  for (const Slice& slice : tensor.slices) {
    blocks.push_back(slice.block);
    if (__builtin_add_overflow(held, slice.block.count, &held)) return "overlap";
  }
  if (!disjoint(blocks, tensor.rows(), tensor.cols())) return "overlap or lie outside the tensor";
  return held == tensor.numel() ? nullptr : "leave a gap";
}

Dataset dataset_of(const JsonNode& node) {
  return {.key = node.at("key").text(),
          .prefix = node.at("prefix").text(),
          .documents = node.at("documents").count(),
          .tokens = node.at("tokens").count(),
          .hash = node.at("hash").hex64()};
}

nlohmann::json parse_json(const std::string& file, const std::string& text) {
  nlohmann::json root = try_parse_json(text);
  if (!root.is_object()) user_error("{}: is not valid JSON; {}", file, kUseAnother);
  const auto format = root.find("format");
  if (format == root.end() || *format != kFormat) {
    user_error("{}: is not a manifest of this version (format: {}); {}", file, kFormat, kUseAnother);
  }
  return root;
}

Manifest manifest_of(const JsonNode& root) {
  Manifest manifest;
  manifest.progress = progress_of(root);
  manifest.config = root.at("config").text();
  if (root.has("datasets")) manifest.datasets = root.at("datasets").list(dataset_of);
  if (root.has("base")) {
    const JsonNode base = root.at("base");
    manifest.base = {base.at("path").text(), base.at("hash").hex64()};
  }
  root.at("checksum_block").integer(kChecksumBlock, kChecksumBlock);
  const JsonNode files = root.at("files"), tensors = root.at("tensors"), fp8 = root.at("fp8");
  manifest.files = files.list(file_of);
  const int num_files = static_cast<int>(manifest.files.size());
  std::unordered_map<std::string_view, size_t> names;
  manifest.tensors.reserve(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    manifest.tensors.push_back(tensor_of(tensors.at(i), num_files));
    if (!names.emplace(manifest.tensors.back().name, i).second)
      tensors.at(i).at("name").refuse("occurs twice");
  }
  manifest.fp8 = fp8.list([&](const JsonNode& part) { return fp8_of(part, num_files); });
  return manifest;
}

}  // namespace

uint64_t checksum(const void* data, size_t bytes) {
  return XXH3_64bits(data, bytes);
}

int64_t LogicalTensor::cols() const {
  int64_t cols = 1;
  for (size_t axis = 1; axis < shape.size(); ++axis) cols *= shape[axis];
  return cols;
}

const LogicalTensor* Manifest::find(std::string_view name) const {
  const auto found = std::ranges::find(tensors, name, &LogicalTensor::name);
  return found == tensors.end() ? nullptr : &*found;
}

std::string to_text(const Manifest& manifest) {
  std::string text = fmt::format(
      "{{\n  \"format\": \"{}\",\n  \"step\": {},\n  \"consumed_samples\": {},\n  \"updates\": {},\n"
      "  \"config\": {},\n  \"checksum_algorithm\": \"XXH3-64\",\n  \"checksum_block\": {},\n",
      kFormat, manifest.progress.step, manifest.progress.consumed_samples, manifest.progress.updates,
      dump_json(Json(manifest.config)), kChecksumBlock);
  text += policies_text(manifest.progress);
  if (!manifest.datasets.empty())
    text += "  \"datasets\": " + list_text(manifest.datasets, dataset_json) + ",\n";
  if (manifest.base)
    text +=
        "  \"base\": " + dump_json(Json{{"path", manifest.base->path}, {"hash", hex(manifest.base->hash)}}) +
        ",\n";
  text += "  \"files\": " + list_text(manifest.files, file_json) + ",\n";
  text += "  \"tensors\": " + list_text(manifest.tensors, tensor_json) + ",\n";
  text += "  \"fp8\": " + list_text(manifest.fp8, fp8_json) + ",\n";
  return text + checksum_lines(text);
}

Manifest parse_manifest_part(const std::string& file, const std::string& text) {
  const nlohmann::json root = parse_json(file, text);  // JsonNode keeps a reference
  return manifest_of(JsonNode(root, file, ""));
}

// The checksum is compared first, so the JSON parser never sees an accidentally damaged file.
Manifest parse_manifest(const std::string& file, const std::string& text) {
  const size_t line = text.rfind(kChecksumKey);
  const std::string_view body = std::string_view(text).substr(0, line == text.npos ? 0 : line);
  if (line == text.npos || text.substr(line) != checksum_lines(body)) {
    user_error("{}: manifest_checksum does not match: the file is damaged or was edited; {}", file,
               kUseAnother);
  }
  const nlohmann::json root = parse_json(file, text);
  Manifest manifest = manifest_of(JsonNode(root, file, ""));
  for (const LogicalTensor& tensor : manifest.tensors) {
    if (const char* fault = slices_fault(tensor)) {
      user_error("{}: tensor {}: its slices {}; {}", file, safetensors::quote_name(tensor.name), fault,
                 kUseAnother);
    }
  }
  return manifest;
}

Manifest read_manifest(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "manifest.json";
  const FileText file = read_file(path, kAnySize);
  if (file.missing) user_error("{}: not found; a checkpoint is a folder with manifest.json", path.string());
  if (!file) user_error("{}: cannot be read: {}; {}", path.string(), file.error, kUseAnother);
  return parse_manifest(path.string(), file.text);
}

Manifest merge(const std::vector<Manifest>& parts) {
  Manifest whole = {.progress = parts.at(0).progress,
                    .config = parts.at(0).config,
                    .datasets = parts.at(0).datasets,
                    .base = parts.at(0).base};
  std::unordered_map<std::string, size_t> places;
  std::vector<LogicalTensor> tensors;
  for (const Manifest& part : parts) {
    const int first_file = static_cast<int>(whole.files.size());
    whole.files.insert(whole.files.end(), part.files.begin(), part.files.end());
    for (const Fp8Part& fp8 : part.fp8) whole.fp8.push_back({fp8.file + first_file, fp8.operands});
    for (const LogicalTensor& tensor : part.tensors) {
      const auto [place, is_new] = places.emplace(tensor.name, tensors.size());
      if (is_new) tensors.push_back({tensor.name, tensor.dtype, tensor.shape, {}});
      LogicalTensor& merged = tensors[place->second];
      TE_CHECK(merged.shape == tensor.shape && merged.dtype == tensor.dtype,
               "tensor {} has different shapes or dtypes on different ranks", tensor.name);
      for (Slice slice : tensor.slices) {
        slice.file += first_file;
        merged.slices.push_back(slice);
      }
    }
  }
  for (const bool moments : {false, true}) {
    for (LogicalTensor& tensor : tensors) {
      if (tensor.is_moment() != moments) continue;
      const char* fault = slices_fault(tensor);
      TE_CHECK(fault == nullptr, "tensor {}: the ranks' slices {}", tensor.name, fault);
      whole.tensors.push_back(std::move(tensor));
    }
  }
  return whole;
}

}  // namespace te::checkpoint
