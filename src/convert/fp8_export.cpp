#include "convert/fp8_export.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "config/precision_overrides.h"
#include "config/recipe_traits.h"
#include "convert/write_behind.h"
#include "core/error.h"
#include "core/float_types.h"
#include "kernels/quantize/quantize_groups.h"
#include "kernels/scale_update/scale_formula.h"

namespace te::convert {
namespace {

/// The other program's module of a weight.
std::string module_of(const Part& part) {
  return part.name.substr(0, part.name.size() - std::string_view(".weight").size());
}

void round_to_bf16(std::span<float> values) {
  for (float& value : values) value = to_float(to_bf16(value));
}

/// The scale of another recipe than delayed is that of the last pass, which may be of validation; then the history
/// decides.
float input_scale_of(const checkpoint::Fp8State::Row& row, config::Fp8Recipe recipe, float margin) {
  const float amax = row.history.empty() ? 0.0f : std::ranges::max(row.history);
  if (!config::traits_of(recipe).history && amax > 0.0f)
    return kernels::scale_of(amax, kE4m3Max, margin, 1.0f);
  return row.scale * (kE4m3Max / row.operand.fp8_max);
}

}  // namespace

Fp8Export::Fp8Export(Fp8Format format, const config::PrecisionConfig& precision, int64_t num_layers,
                     const checkpoint::Reader& reader, const std::vector<ParameterLayout>& layout)
    : format_(format),
      bf16_(precision.dtype == config::ComputeDType::bf16),
      power_of_two_(precision.fp8_scale_format == config::Fp8ScaleFormat::power_of_two),
      margin_(static_cast<int>(precision.margin)) {
  if (format_ == Fp8Format::off) return;
  for (const ParameterLayout& parameter : layout) {
    if (linears_of(parameter).empty()) continue;
    if (parameter.parts.front().order == Order::permuted)
      user_error(
          "--fp8: the rows of q and k have another order in transformers (part of each head rotated, or "
          "nanochat), which FP8 export does not support; export {} without --fp8",
          reader.folder().string());
    if (parameter.parts.front().order == Order::transposed)
      user_error(
          "--fp8: {} has GPT-2's linear layers (Conv1D), which transformers does not support in FP8; export "
          "without --fp8",
          reader.folder().string());
  }
  find_linears(precision, num_layers, layout);
  if (linears_.empty())
    user_error(
        "--fp8: {} has no weight to convert: first_layers_bf16, last_layers_bf16 and overrides keep all "
        "layers in BF16, or no size is a multiple of 128; export without --fp8",
        reader.folder().string());
  if (format_ == Fp8Format::tensor) find_scales(reader);
}

/// Empty for other parameters and the output layer, which stays in BF16.
std::vector<Fp8Export::Linear> Fp8Export::linears_of(const ParameterLayout& parameter) {
  const auto& [role, layer, part] = parameter.id;
  if (part != ParameterPart::weight) return {};
  std::optional<LinearKind> kind = linear_kind_of(role);
  size_t together = parameter.parts.size();
  int expert = kNoExpert;
  if (role == ParameterRole::experts_fc1) kind = LinearKind::fc1, together = 2, expert = 0;  // gate and up
  if (role == ParameterRole::experts_fc2) kind = LinearKind::fc2, together = 1, expert = 0;
  if (role == ParameterRole::shared_expert_fc1) kind = LinearKind::fc1, expert = kSharedExpert;
  if (role == ParameterRole::shared_expert_fc2) kind = LinearKind::fc2, expert = kSharedExpert;
  if (!kind || kind == LinearKind::output_layer) return {};
  std::vector<Linear> linears;
  int64_t row = 0;
  for (size_t first = 0; first < parameter.parts.size(); first += together) {
    const std::span<const Part> parts(parameter.parts.data() + first, together);
    linears.push_back(
        {.id = {layer, *kind, expert}, .parameter = &parameter, .parts = parts, .first_row = row});
    for (const Part& one : parts) row += one.rows();
    if (expert >= 0) ++expert;
  }
  return linears;
}

void Fp8Export::find_linears(const config::PrecisionConfig& trained, int64_t num_layers,
                             const std::vector<ParameterLayout>& layout) {
  const config::PrecisionConfig precision = config::as_quantized(trained);
  for (const ParameterLayout& parameter : layout) {
    if (parameter.id.role == ParameterRole::router || parameter.id.role == ParameterRole::shared_expert_gate)
      kept_.push_back(module_of(parameter.parts.front()));
    for (Linear& one : linears_of(parameter)) {
      const config::LinearPrecision linear = config::linear_precision(precision, one.id, num_layers);
      // Inference runs the forward pass only.
      const bool quantized = linear.fprop;
      // The parts share one scale, so either all of them are converted or none.
      const bool whole_blocks = std::ranges::all_of(one.parts, [&](const Part& part) {
        return part.shape[0] % kFp8Block == 0 && part.shape[1] % kFp8Block == 0;
      });
      if (quantized && (format_ == Fp8Format::tensor || whole_blocks)) {
        for (const Part& part : one.parts) linear_of_part_[&part] = linears_.size();
        one.recipe = linear.recipe;
        linears_.push_back(one);
        continue;
      }
      for (const Part& part : one.parts) kept_.push_back(module_of(part));
      if (quantized) left_out_ += static_cast<int64_t>(one.parts.size());
    }
  }
  kept_.push_back("lm_head");
}

// Input scales come from the checkpoint's FP8 state. A weight's scale comes from its current amax, as in training.
void Fp8Export::find_scales(const checkpoint::Reader& reader) {
  const checkpoint::Fp8State state = reader.fp8();
  const float margin = std::ldexp(1.0f, -margin_);
  for (Linear& linear : linears_) {
    const std::string name = linear.id.name();
    const auto row = std::ranges::find_if(state.rows, [&](const checkpoint::Fp8State::Row& found) {
      return found.operand.name == name && found.operand.role == "input";
    });
    const bool measured = row != state.rows.end() && row->measured();
    if (!measured && row != state.rows.end() && linear.id.expert >= 0)
      user_error(
          "--fp8 tensor: {}: {} has received no token in training, so its input has no scale; use --fp8 "
          "block, which needs none",
          reader.folder().string(), name);
    if (!measured)
      user_error(
          "--fp8 tensor: {} has no input scale of {}; it needs the FP8 state of a run with the delayed "
          "recipe or with fp8_calibrate; --fp8 block needs none",
          reader.folder().string(), name);
    linear.input_scale = input_scale_of(*row, linear.recipe, margin);
    linear.weight_scale = kernels::scale_of(amax_of(reader, linear), kE4m3Max, margin, 1.0f);
  }
}

float Fp8Export::amax_of(const checkpoint::Reader& reader, const Linear& linear) const {
  const int64_t cols = linear.parameter->cols(), max_rows = std::max<int64_t>(1, kChunkBytes / (4 * cols));
  int64_t rows = 0;
  for (const Part& part : linear.parts) rows += part.rows();
  std::vector<float> chunk;
  float amax = 0.0f;
  for (int64_t first = 0; first < rows; first += max_rows) {
    const int64_t count = std::min(max_rows, rows - first);
    chunk.resize(static_cast<size_t>(count * cols));
    reader.read_rows(linear.parameter->name, linear.first_row + first, count, chunk.data());
    if (bf16_) round_to_bf16(chunk);
    for (const float value : chunk) amax = std::max(amax, std::abs(value));
  }
  return amax;
}

bool Fp8Export::converts(const Part& part) const {
  return linear_of_part_.contains(&part);
}

std::vector<SafetensorsSpec> Fp8Export::multipliers(const Part& part) const {
  if (format_ == Fp8Format::block)
    return {{part.name + "_scale_inv", DType::f32, {part.shape[0] / kFp8Block, part.shape[1] / kFp8Block}}};
  return {{part.name + "_scale", DType::f32, {1}}, {module_of(part) + ".input_scale", DType::f32, {1}}};
}

void Fp8Export::quantize(const Part& part, int64_t cols, std::span<float> values, std::byte* codes,
                         std::vector<float>& scales) const {
  if (bf16_) round_to_bf16(values);
  const Linear& linear = linears_[linear_of_part_.at(&part)];
  const Shape shape{static_cast<int64_t>(values.size()) / cols, cols};
  if (format_ == Fp8Format::block)
    return quantize_blocks(linear, {values.data(), DType::f32, shape}, codes, scales);
  const float scale = linear.weight_scale;
  for (size_t i = 0; i < values.size(); ++i) codes[i] = std::byte{to_e4m3(values[i] * scale).bits};
}

void Fp8Export::quantize_blocks(const Linear& linear, const Tensor& values, std::byte* codes,
                                std::vector<float>& scales) const {
  using kernels::ScaleLayout;
  const int64_t rows = values.rows(), cols = values.cols();
  const Shape shape = kernels::scale_shape(ScaleLayout::blocks, rows, cols);
  std::vector<float> padded(static_cast<size_t>(shape.numel()));
  const bool trained = linear.recipe == config::Fp8Recipe::blockwise;
  const Tensor e4m3{codes, DType::e4m3, values.shape}, scale_inv{padded.data(), DType::f32, shape};
  kernels::quantize_groups(Context::cpu(), {.x = values,
                                            .rowwise = {e4m3, scale_inv, ScaleLayout::blocks},
                                            .columnwise = {},
                                            .power_of_two = trained && power_of_two_,
                                            .margin = trained ? margin_ : 0});
  // quantize_groups() pads the rows of scales for GEMMs; the file format has no padding.
  for (int64_t row = 0; row < shape[0]; ++row) {
    const auto begin = padded.begin() + row * shape[1];
    scales.insert(scales.end(), begin, begin + cols / kFp8Block);
  }
}

std::vector<std::vector<float>> Fp8Export::values(const Part& part, std::vector<float> scales) const {
  if (format_ == Fp8Format::block) return {std::move(scales)};
  const Linear& linear = linears_[linear_of_part_.at(&part)];
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
