#include "convert/fp8_import.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/printable.h"

namespace te::convert {
namespace {

constexpr const char* kFp8Remedy =
    "te-train reads FP8 weights in DeepSeek's block format and in compressed-tensors with one scale per "
    "weight, channel or block";

void read_block_size(const JsonKeys& keys, const char* key, StoredFp8& fp8) {
  if (!keys.has(key)) keys.refuse(key, "is missing", kFp8Remedy);
  const nlohmann::json& size = keys.object().at(key);
  const auto good = [](const nlohmann::json& value) {
    return value.is_number_integer() && value.get<double>() >= 1 && value.get<double>() <= 1e6;
  };
  if (!size.is_array() || size.size() != 2 || !good(size[0]) || !good(size[1]))
    keys.refuse(key, "must be two positive integers", kFp8Remedy);
  keys.without_effect({key});
  fp8.block_rows = size[0].get<int64_t>();
  fp8.block_cols = size[1].get<int64_t>();
}

StoredFp8 read_blocks(const JsonKeys& keys) {
  keys.must_be_one_of("activation_scheme", keys.text("activation_scheme", "dynamic"), {"dynamic"},
                      kFp8Remedy);
  keys.must_be_one_of("fmt", keys.text("fmt", "e4m3"), {"e4m3"}, kFp8Remedy);
  StoredFp8 fp8{.multiplier = "_scale_inv"};
  read_block_size(keys, "weight_block_size", fp8);
  // The dtypes of the tensors tell which modules are not quantized; te-train does not import activation scales.
  keys.without_effect({"ignored_layers", "kv_cache_scheme", "modules_to_not_convert", "scale_fmt"});
  keys.refuse_unread({}, kFp8Remedy);
  return fp8;
}

StoredFp8 read_compressed_tensors(const JsonKeys& keys) {
  keys.must_be_one_of("format", keys.text("format", ""), {"float-quantized", "naive-quantized"}, kFp8Remedy);
  const JsonKeys groups = keys.within("config_groups");
  StoredFp8 fp8{.multiplier = "_scale"};
  bool first = true;
  for (const auto& [name, group] : groups.object().items()) {
    const JsonKeys within = groups.within(name.c_str()), weights = within.within("weights");
    weights.must_be_one_of("type", weights.text("type", ""), {"float"}, kFp8Remedy);
    weights.must_be("num_bits", weights.integer("num_bits"), int64_t{8}, kFp8Remedy);
    const std::string strategy = weights.text("strategy", "");
    weights.must_be_one_of("strategy", strategy, {"tensor", "channel", "block"}, kFp8Remedy);
    StoredFp8 own{.multiplier = fp8.multiplier};
    if (strategy == "block") read_block_size(weights, "block_structure", own);
    if (!std::exchange(first, false) &&
        (own.block_rows != fp8.block_rows || own.block_cols != fp8.block_cols))
      weights.refuse("block_structure", "must be that of the other groups", kFp8Remedy);
    fp8 = own;
    weights.must_be("symmetric", weights.boolean("symmetric", true), true, kFp8Remedy);
    weights.without_effect({"actorder", "dynamic", "observer", "observer_kwargs", "scale_dtype", "zp_dtype"});
    weights.refuse_unread({}, kFp8Remedy);
    within.without_effect({"format", "input_activations", "output_activations", "targets"});
    within.refuse_unread({}, kFp8Remedy);
  }
  keys.without_effect(
      {"global_compression_ratio", "ignore", "kv_cache_scheme", "quantization_status", "version"});
  keys.refuse_unread({}, kFp8Remedy);
  return fp8;
}

std::vector<float> read_all(const TensorFiles& files, const StoredTensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.numel()));
  files.read(tensor, 0, tensor.numel(), DType::f32, reinterpret_cast<std::byte*>(values.data()));
  return values;
}

}  // namespace

StoredFp8 read_quantization(const JsonKeys& config) {
  if (!config.has("quantization_config")) return {};
  const JsonKeys keys = config.within("quantization_config");
  const std::string method = keys.text("quant_method", "");
  keys.must_be_one_of("quant_method", method, {"fp8", "compressed-tensors"}, kFp8Remedy);
  return method == "fp8" ? read_blocks(keys) : read_compressed_tensors(keys);
}

void attach_multipliers(TensorFiles& files, const StoredFp8& fp8) {
  std::vector<std::string> quantized;
  for (const auto& [name, tensor] : files.tensors())
    if (tensor.type == FileType::e4m3) quantized.push_back(name);
  if (!quantized.empty() && fp8.multiplier == nullptr)
    user_error(
        "{}: tensor {} is F8_E4M3, but config.json has no quantization_config; use the config.json of the "
        "model's folder, or the model that is not quantized",
        files.path_of(*files.find(quantized[0])), printable(quantized[0]));
  for (const std::string& name : quantized) {
    const StoredTensor& weight = *files.find(name);
    const std::string path = files.path_of(weight);
    if (weight.shape.size() != 2)
      user_error("{}: tensor {} is in FP8 but is not a matrix; copy the model again", path, printable(name));
    const int64_t rows = weight.shape[0], cols = weight.shape[1];
    const std::string own = name + fp8.multiplier;
    const StoredTensor* stored = files.find(own);
    const auto other = files.untyped().find(own);
    if (other != files.untyped().end() || (stored != nullptr && stored->type == FileType::e4m3))
      user_error("{}: tensor {} is {}, must be F32, BF16 or F16; te-train reads no other multipliers", path,
                 printable(own), stored != nullptr ? "F8_E4M3" : other->second);
    auto multipliers = std::make_shared<Multipliers>();
    const bool channels = stored != nullptr && stored->numel() > 1;
    multipliers->block_rows = fp8.block_rows > 0 ? fp8.block_rows : channels ? 1 : rows;
    multipliers->block_cols = fp8.block_cols > 0 ? fp8.block_cols : cols;
    multipliers->whole = fp8.block_rows == 0;
    multipliers->cols = (cols + multipliers->block_cols - 1) / multipliers->block_cols;
    const int64_t wanted = (rows + multipliers->block_rows - 1) / multipliers->block_rows * multipliers->cols;
    const bool fits =
        stored != nullptr && stored->type != FileType::e4m3 && stored->numel() == wanted &&
        (fp8.block_rows == 0 || (stored->shape.size() == 2 && stored->shape[1] == multipliers->cols));
    if (!fits)
      user_error("{}: tensor {} is in FP8, but {} with {} multipliers is missing; copy the model again", path,
                 printable(name), printable(own), wanted);
    multipliers->values = read_all(files, *stored);
    files.attach(name, std::move(multipliers));
    files.remove(own);
    constexpr std::string_view kWeight = "weight";
    if (name.ends_with(kWeight)) files.remove(name.substr(0, name.size() - kWeight.size()) + "input_scale");
  }
}

}  // namespace te::convert
