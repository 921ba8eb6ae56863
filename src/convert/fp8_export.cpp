#include "convert/fp8_export.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/error.h"
#include "core/float_types.h"
#include "kernels/scale_update/scale_formula.h"

namespace te::convert {
namespace {

constexpr int64_t kPieceBytes = 16 << 20;

/// The layer of a parameter, or -1.
int64_t layer_of(const std::string& name) {
  constexpr std::string_view kPrefix = "layers.";
  return name.starts_with(kPrefix) ? std::stoll(name.substr(kPrefix.size())) : -1;
}

bool is_linear_weight(const ParameterLayout& parameter) {
  return layer_of(parameter.name) >= 0 && parameter.name.find(".linear_") != std::string::npos &&
         parameter.name.ends_with(".weight");
}

std::string without(const std::string& name, std::string_view ending) {
  return name.substr(0, name.size() - ending.size());
}

std::string module_of(const Part& part) {
  return without(part.name, ".weight");
}

int64_t blocks(int64_t size) {
  return (size + kFp8Block - 1) / kFp8Block;
}

void round_to_bf16(std::span<float> values) {
  for (float& value : values) value = to_float(to_bf16(value));
}

}  // namespace

void quantize_blocks(std::span<const float> values, int64_t cols, std::byte* codes, float* scale_inv) {
  const int64_t rows = static_cast<int64_t>(values.size()) / cols;
  for (int64_t r0 = 0; r0 < rows; r0 += kFp8Block) {
    for (int64_t c0 = 0; c0 < cols; c0 += kFp8Block) {
      const int64_t r1 = std::min(r0 + kFp8Block, rows), c1 = std::min(c0 + kFp8Block, cols);
      float amax = 0.0f;
      for (int64_t r = r0; r < r1; ++r)
        for (int64_t c = c0; c < c1; ++c)
          amax = std::max(amax, std::abs(values[static_cast<size_t>(r * cols + c)]));
      const float multiplier = amax > 0.0f ? std::max(amax / kE4m3Max, 0x1p-126f) : 1.0f;
      *scale_inv++ = multiplier;
      for (int64_t r = r0; r < r1; ++r)
        for (int64_t c = c0; c < c1; ++c)
          codes[r * cols + c] =
              std::byte{to_e4m3(values[static_cast<size_t>(r * cols + c)] / multiplier).bits};
    }
  }
}

Fp8Export::Fp8Export(Fp8Format format, const config::Config& config, const checkpoint::Reader& reader,
                     const std::vector<ParameterLayout>& layout)
    : format_(format), bf16_(config.precision.dtype == config::ComputeDType::bf16) {
  if (format_ == Fp8Format::off) return;
  for (const ParameterLayout& parameter : layout) {
    if (!is_linear_weight(parameter)) continue;
    if (parameter.parts.front().order == Order::permuted)
      user_error(
          "--fp8: {} turns a part of each head (model.rotary_percent), whose rows export in FP8 would have "
          "to reorder; "
          "leave --fp8 out",
          reader.folder().string());
    if (parameter.parts.front().order == Order::transposed)
      user_error(
          "--fp8: {} has the linear layers of GPT-2, which transformers' FP8 does not know (Conv1D); leave "
          "--fp8 out",
          reader.folder().string());
  }
  find_linears(config, layout);
  if (linears_.empty())
    user_error(
        "--fp8: {} has no weight to convert: all layers are in first_layers_bf16 or last_layers_bf16, or no "
        "size is a "
        "multiple of 128; leave --fp8 out",
        reader.folder().string());
  if (format_ == Fp8Format::tensor) find_scales(config, reader);
}

void Fp8Export::find_linears(const config::Config& config, const std::vector<ParameterLayout>& layout) {
  const int64_t first = config.precision.first_layers_bf16,
                last = config.model.num_layers - config.precision.last_layers_bf16;
  for (const ParameterLayout& parameter : layout) {
    if (!is_linear_weight(parameter)) continue;
    const int64_t layer = layer_of(parameter.name);
    const bool quantized = layer >= first && layer < last;
    // One scale is that of all parts; so is their fate.
    const bool whole_blocks = std::all_of(
        parameter.parts.begin(), parameter.parts.end(),
        [&](const Part& part) { return part.shape[0] % kFp8Block == 0 && part.shape[1] % kFp8Block == 0; });
    const bool fits = format_ == Fp8Format::tensor || whole_blocks;
    if (quantized && fits) {
      linears_.push_back({&parameter, 1.0f, 1.0f});
      continue;
    }
    for (const Part& part : parameter.parts) kept_.push_back(module_of(part));
    if (quantized) left_out_ += static_cast<int64_t>(parameter.parts.size());
  }
  kept_.push_back("lm_head");
}

// The inputs' scales are those of the state; a weight has the scale that its own amax asks for, as when training casts it.
void Fp8Export::find_scales(const config::Config& config, const checkpoint::Reader& reader) {
  const checkpoint::Fp8State state = reader.fp8();
  const float margin = std::ldexp(1.0f, -static_cast<int>(config.precision.margin));
  for (Linear& linear : linears_) {
    const std::string name = without(linear.parameter->name, ".weight");
    const auto row =
        std::find_if(state.rows.begin(), state.rows.end(), [&](const checkpoint::Fp8State::Row& found) {
          return found.operand.name == name && found.operand.role == "input";
        });
    const bool measured = row != state.rows.end() && std::any_of(row->history.begin(), row->history.end(),
                                                                 [](float amax) { return amax > 0.0f; });
    if (!measured)
      user_error(
          "--fp8 tensor: {} has no scale of the inputs of {}; it needs the FP8 state of a run with the "
          "delayed recipe, or "
          "with fp8_calibrate; --fp8 block needs none",
          reader.folder().string(), name);
    linear.input_scale = row->scale * (kE4m3Max / row->operand.fp8_max);
    linear.weight_scale = kernels::scale_of(largest(reader, *linear.parameter), kE4m3Max, margin, 1.0f);
  }
}

float Fp8Export::largest(const checkpoint::Reader& reader, const ParameterLayout& parameter) const {
  const int64_t most = std::max<int64_t>(1, kPieceBytes / (4 * parameter.cols()));
  std::vector<float> piece;
  float amax = 0.0f;
  for (int64_t first = 0; first < parameter.rows(); first += most) {
    const int64_t count = std::min(most, parameter.rows() - first);
    piece.resize(static_cast<size_t>(count * parameter.cols()));
    reader.read_rows(parameter.name, first, count, piece.data());
    if (bf16_) round_to_bf16(piece);
    for (const float value : piece) amax = std::max(amax, std::abs(value));
  }
  return amax;
}

const Fp8Export::Linear* Fp8Export::find(const Part& part) const {
  for (const Linear& linear : linears_)
    for (const Part& own : linear.parameter->parts)
      if (&own == &part) return &linear;
  return nullptr;
}

bool Fp8Export::converts(const Part& part) const {
  return find(part) != nullptr;
}

std::vector<SafetensorsSpec> Fp8Export::multipliers(const Part& part) const {
  if (format_ == Fp8Format::block)
    return {{part.name + "_scale_inv", DType::f32, {blocks(part.shape[0]), blocks(part.shape[1])}}};
  return {{part.name + "_scale", DType::f32, {1}}, {module_of(part) + ".input_scale", DType::f32, {1}}};
}

void Fp8Export::quantize(const ParameterLayout& parameter, std::span<float> values, std::byte* codes,
                         std::vector<float>& scales) const {
  if (bf16_) round_to_bf16(values);
  const int64_t cols = parameter.cols(), rows = static_cast<int64_t>(values.size()) / cols;
  if (format_ == Fp8Format::block) {
    const size_t before = scales.size();
    scales.resize(before + static_cast<size_t>(blocks(rows) * blocks(cols)));
    return quantize_blocks(values, cols, codes, scales.data() + before);
  }
  const float scale = find(parameter.parts.front())->weight_scale;
  for (size_t i = 0; i < values.size(); ++i) codes[i] = std::byte{to_e4m3(values[i] * scale).bits};
}

std::vector<std::vector<float>> Fp8Export::values(const ParameterLayout& parameter,
                                                  std::vector<float> scales) const {
  if (format_ == Fp8Format::block) return {std::move(scales)};
  const Linear& linear = *find(parameter.parts.front());
  return {{1.0f / linear.weight_scale}, {1.0f / linear.input_scale}};
}

nlohmann::json Fp8Export::quantization_config() const {
  if (format_ == Fp8Format::block)
    return {{"quant_method", "fp8"},
            {"fmt", "e4m3"},
            {"activation_scheme", "dynamic"},
            {"weight_block_size", {kFp8Block, kFp8Block}},
            {"modules_to_not_convert", kept_}};
  const nlohmann::json scheme = {{"num_bits", 8},     {"type", "float"},  {"strategy", "tensor"},
                                 {"symmetric", true}, {"dynamic", false}, {"observer", "minmax"}};
  return {{"quant_method", "compressed-tensors"},
          {"format", "float-quantized"},
          {"quantization_status", "compressed"},
          {"config_groups",
           {{"group_0", {{"targets", {"Linear"}}, {"weights", scheme}, {"input_activations", scheme}}}}},
          {"ignore", kept_}};
}

}  // namespace te::convert
