// PEFT's adapters of fused experts (LoraConfig.target_parameters). transformers 5 has the experts of a layer as the
// parameters gate_up_proj [experts, 2 ffn, hidden] and down_proj [experts, hidden, ffn]; an adapter of one of them is
//
//   lora_A [experts * R, in]     row e * R + j
//   lora_B [out, R * experts]    column j * experts + e
//
// R is the rank, or twice the rank for gate_up_proj with adapters of its own for gate and up: A has gate's rows, then
// up's, and B of an expert is block-diagonal. Private to src/convert.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "config/config.h"
#include "convert/json_keys.h"
#include "convert/tensor_files.h"

namespace te::convert {

/// Values of a tensor of a PEFT folder, FP32. UserError if it is missing, has another shape, or is not finite.
void read_peft_tensor(const TensorFiles& files, const std::string& file, const std::string& name,
                      int64_t rows, int64_t cols, float* out);

/// One matrix of one expert.
struct ExpertMatrix {
  std::string experts;  ///< "base_model.model.model.layers.1.mlp.experts."
  LinearKind kind = LinearKind::fc1;
  int64_t expert = 0, block = 0;  ///< block: 0 gate, 1 up
  int64_t rows = 0, in = 0;
};

/// The fused parameters that an adapter targets, as adapter_config.json says.
struct FusedTargets {
  bool gate_up = false, down = false;
  bool own_rows = false;  ///< gate and up have adapters of their own: twice the rank

  bool any() const { return gate_up || down; }
  bool has(LinearKind kind) const { return kind == LinearKind::fc1 ? gate_up : down; }
  /// PEFT wraps down_proj around gate_up_proj.
  std::string name(const std::string& experts, LinearKind kind) const {
    return experts + (kind == LinearKind::fc1 && down ? "base_layer." : "");
  }
  /// UserError for parameters of other modules than experts, and for other rank patterns.
  static FusedTargets of(const JsonKeys& keys, const config::AdapterConfig& adapter,
                         const config::ModelConfig& model);
  /// The keys of adapter_config.json.
  void write(nlohmann::json& keys, const config::AdapterConfig& adapter) const;
};

/// Reads matrices from fused tensors.
class FusedExperts {
 public:
  FusedExperts(const TensorFiles& files, std::string file, FusedTargets targets, int64_t experts,
               int64_t rank)
      : files_(files), file_(std::move(file)), targets_(targets), experts_(experts), rank_(rank) {}
  /// A [rank, in] and B [rows, rank].
  void read(const ExpertMatrix& matrix, float* a, float* b);
  const std::set<std::string>& names() const { return names_; }  ///< of the tensors that were read

 private:
  void load(const std::string& name, int64_t rank, int64_t out, int64_t in);

  const TensorFiles& files_;
  std::string file_;
  FusedTargets targets_;
  int64_t experts_, rank_;
  std::string loaded_;
  std::vector<float> a_, b_;  ///< of the last tensors
  std::set<std::string> names_;
};

/// lora_B of a fused parameter from B of all experts, [experts * rows of the targets, rank]. `blocks`: rows of each
/// matrix of an expert; `targets`: those with an adapter.
std::vector<float> fuse_b(const std::vector<float>& b, int64_t experts, int64_t rank,
                          const std::vector<int64_t>& blocks, const std::vector<size_t>& targets);

}  // namespace te::convert
