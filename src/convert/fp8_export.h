// Exports linear layers as FP8 in a Hugging Face folder, in one of two formats that serving programs read:
//
//   block   DeepSeek's format: NAME.weight in E4M3, NAME.weight_scale_inv in FP32 [out / 128, in / 128], a multiplier
//           for each block of 128 x 128. Inputs are quantized during inference ("dynamic"). A model that was trained
//           with the blockwise recipe keeps the scales and codes of its training; others get multipliers of amax / 448
//   tensor  compressed-tensors: NAME.weight in E4M3, NAME.weight_scale and NAME.input_scale in FP32 [1]. These
//           multipliers are the inverse of te-train's scales: the weight's scale comes from its current amax, the
//           input's scale from the state of the delayed recipe. Inference then uses the same FP8 values as training
//
// The export converts the weights whose forward GEMM runs in FP8 during training: those of the transformer layers'
// linear layers and of experts, except where precision.first_layers_bf16, last_layers_bf16 or overrides keep BF16. All
// other tensors (embeddings, norms, biases, routers, output layer) have ExportOptions::dtype; config.json lists the
// unquantized modules.
// transformers derives the block size from the shapes of weight and multipliers, so the block format skips weights
// whose sizes are not multiples of 128.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "checkpoint/reader.h"
#include "checkpoint/safetensors.h"
#include "config/config.h"
#include "convert/layout.h"
#include "core/tensor.h"

namespace te::convert {

enum class Fp8Format : uint8_t { off, block, tensor };
TE_NAMES(Fp8Format, "off", "block", "tensor")

inline constexpr int64_t kFp8Block = 128;
inline constexpr float kE4m3Max = 448.0f;

class Fp8Export {
 public:
  /// UserError if the model has linear layers that are not torch.nn.Linear (GPT-2) or whose rows would have to be
  /// reordered, if no weight can be converted, or if the format is `tensor` and the checkpoint has no input scales.
  Fp8Export(Fp8Format format, const config::PrecisionConfig& precision, int64_t num_layers,
            const checkpoint::Reader& reader, const std::vector<ParameterLayout>& layout);

  bool converts(const Part& part) const;
  /// Names and shapes of the multipliers of a converted weight.
  std::vector<SafetensorsSpec> multipliers(const Part& part) const;
  /// Number of weights that training quantizes but the export does not, because of their shape.
  int64_t left_out() const { return left_out_; }
  /// The quantization_config of config.json.
  nlohmann::json quantization_config() const;

  /// FP8 codes of rows of a converted part, of `cols` columns. Rounds `values` to BF16 in place first if training does.
  /// A chunk starts at a multiple of 128 rows; its number of rows is a multiple of 128, except in the last chunk.
  /// Appends the multipliers of the chunk's blocks to `scales`.
  void quantize(const Part& part, int64_t cols, std::span<float> values, std::byte* codes,
                std::vector<float>& scales) const;
  /// After the last chunk: the values of multipliers(part), in the same order.
  std::vector<std::vector<float>> values(const Part& part, std::vector<float> scales) const;

 private:
  /// A linear layer, or one of an expert: parts of a parameter that share one scale.
  struct Linear {
    LinearId id;
    const ParameterLayout* parameter;
    std::span<const Part> parts;
    int64_t first_row = 0;  ///< of the parameter
    config::Fp8Recipe recipe{};
    float weight_scale = 1.0f, input_scale = 1.0f;  ///< as in te-train (not inverted); format `tensor` only
  };
  static std::vector<Linear> linears_of(const ParameterLayout& parameter);
  void find_linears(const config::PrecisionConfig& trained, int64_t num_layers,
                    const std::vector<ParameterLayout>& layout);
  void find_scales(const checkpoint::Reader& reader);
  float amax_of(const checkpoint::Reader& reader, const Linear& linear) const;
  /// values: [rows, cols] FP32, both multiples of 128. Appends a row of multipliers for each 128 rows.
  void quantize_blocks(const Linear& linear, const Tensor& values, std::byte* codes,
                       std::vector<float>& scales) const;

  Fp8Format format_;
  bool bf16_;  ///< training rounds weights to BF16 before quantization
  bool power_of_two_;
  int margin_;
  std::vector<Linear> linears_;
  std::unordered_map<const Part*, size_t> linear_of_part_;
  std::vector<std::string> kept_;  ///< modules that are not quantized
  int64_t left_out_ = 0;
};

}  // namespace te::convert
