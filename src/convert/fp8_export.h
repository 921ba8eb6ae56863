// Linear layers as FP8 in a Hugging Face folder, in one of two formats that serving programs read:
//
//   block   of DeepSeek: NAME.weight in E4M3, NAME.weight_scale_inv in FP32 [out / 128, in / 128], a multiplier for
//           each block of 128 x 128. Inputs are quantized while the model runs ("dynamic"). A model that was trained
//           with the blockwise recipe keeps the scales and codes of its training; others get multipliers of amax / 448
//   tensor  of compressed-tensors: NAME.weight in E4M3, NAME.weight_scale and NAME.input_scale in FP32 [1], multipliers
//           that are the inverse of te-train's scales: the weight's own, and that of the inputs out of the state of the
//           delayed recipe. Serving then multiplies the FP8 numbers that training has multiplied
//
// Converted are the weights whose forward GEMM training runs in FP8: those of the transformer layers' linear layers,
// but for what precision.first_layers_bf16, last_layers_bf16 and overrides keep in BF16. All others, with embeddings,
// norms, biases and the head, keep the export's other dtype and are listed in config.json. transformers derives a
// block's size from the shapes of weight and multipliers, so block leaves weights alone whose sizes are no multiples of
// 128.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/reader.h"
#include "checkpoint/safetensors.h"
#include "config/config.h"
#include "convert/layout.h"
#include "core/tensor.h"

namespace te::convert {

enum class Fp8Format : uint8_t { off, block, tensor };

inline constexpr int64_t kFp8Block = 128;
inline constexpr float kE4m3Max = 448.0f;

class Fp8Export {
 public:
  /// `bf16`: whether training rounds weights to BF16 before it casts them. UserError when the model has linear layers
  /// that are no torch.nn.Linear (GPT-2), or `tensor` finds no scales of inputs.
  Fp8Export(Fp8Format format, const config::PrecisionConfig& precision, int64_t num_layers,
            const checkpoint::Reader& reader, const std::vector<ParameterLayout>& layout);

  bool converts(const Part& part) const;
  /// The multipliers that belong to a converted weight.
  std::vector<SafetensorsSpec> multipliers(const Part& part) const;
  /// Weights that training quantizes and that stay as they are, for their shape.
  int64_t left_out() const { return left_out_; }
  /// quantization_config of config.json.
  nlohmann::json quantization_config() const;

  /// Codes of rows of a converted part, from FP32 values in place of which BF16 ones are taken. A piece starts at a
  /// multiple of 128 rows, and is one unless it is the last. Appends to `scales` the multipliers of its blocks.
  void quantize(const ParameterLayout& parameter, std::span<float> values, std::byte* codes,
                std::vector<float>& scales) const;
  /// After the last piece: the values of multipliers(part), in their order.
  std::vector<std::vector<float>> values(const ParameterLayout& parameter, std::vector<float> scales) const;

 private:
  struct Linear {
    const ParameterLayout* parameter;
    config::Fp8Recipe recipe;
    float weight_scale = 1.0f, input_scale = 1.0f;  ///< te-train's; `tensor`
  };
  void find_linears(const config::PrecisionConfig& trained, int64_t num_layers,
                    const std::vector<ParameterLayout>& layout);
  void find_scales(const checkpoint::Reader& reader);
  float largest(const checkpoint::Reader& reader, const ParameterLayout& parameter) const;
  const Linear* find(const Part& part) const;
  /// values: [rows, cols] FP32, multiples of 128. Appends a row of multipliers for each 128 rows.
  void quantize_blocks(const Linear& linear, const Tensor& values, std::byte* codes,
                       std::vector<float>& scales) const;

  Fp8Format format_;
  bool bf16_, power_of_two_;
  int margin_;
  std::vector<Linear> linears_;
  std::vector<std::string> kept_;  ///< modules that stay as they are
  int64_t left_out_ = 0;
};

}  // namespace te::convert
