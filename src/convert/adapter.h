// Trained LoRA adapters as files: adapter checkpoints of te-train, and PEFT's format (adapter_config.json with
// adapter_model.safetensors). Generation, evaluation, export and new runs see a base with an adapter as one
// WeightSource, whose weights are W + scale * B A.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/reader.h"
#include "checkpoint/weight_source.h"
#include "config/config.h"

namespace te::convert {

/// The tensors of an adapter under te-train's names (config/adapter.h): A and B, and parameters that were trained in
/// full.
struct Adapter {
  config::AdapterConfig config;  ///< type, rank, alpha, use_rslora and target
  std::unique_ptr<checkpoint::WeightSource> weights;
  uint64_t base = 0;  ///< hash of the weights that it was trained on; 0: unknown
};

/// Opens an adapter checkpoint, or a PEFT folder for a base with this model. UserError if it is neither, or does not
/// belong to the model.
Adapter open_adapter(const std::filesystem::path& path, const config::ModelConfig& model);

/// The base of an adapter checkpoint, the base of that one if it is an adapter, and so on, up to one that is none or
/// does not exist. UserError if an adapter is its own base, as after a run that has replaced the base.
std::vector<std::filesystem::path> bases_of(const checkpoint::Reader& adapter);

/// The weights of a base with an adapter. The base may have other adapters, each of which was trained on the same base
/// or on the base with those before it.
class AdaptedWeights final : public checkpoint::WeightSource {
 public:
  /// UserError if the adapter was trained on other files (equal weights in other files have another hash), or has
  /// parameters that were trained in full (norms, embeddings) and that another adapter of the base has changed since.
  AdaptedWeights(std::unique_ptr<WeightSource> base, const config::ModelConfig& model, Adapter adapter);

  std::string title() const override { return base_->title() + " with adapter " + adapter_.weights->title(); }
  std::string config() const override { return base_->config(); }
  std::vector<std::string> names() const override { return base_->names(); }
  uint64_t hash() const override;
  std::optional<checkpoint::TensorInfo> info(std::string_view name) const override;
  void read(std::string_view name, const checkpoint::Block& block, float* out) const override;
  const WeightSource& base() const { return *base_; }

 private:
  /// The adapter of a linear layer.
  struct Product {
    std::string name;     ///< of the weight
    int64_t columns = 0;  ///< of the weight
    std::vector<float> a, b;
    /// Per row of the weight: its row of B and the first row of its target's A, or -1.
    std::vector<int64_t> b_row, a_row;
  };
  const Product& product_of(const std::string& name, const LinearId& id) const;
  void check_whole_parameters() const;

  std::unique_ptr<WeightSource> base_;
  config::ModelConfig model_;
  Adapter adapter_;
  std::map<std::string, LinearId, std::less<>> adapted_;  ///< by the weights' names
  mutable Product product_;                               ///< of the last weight that was read
};

/// The weights at `base` with the adapters at `adapters`, one after the other.
std::unique_ptr<checkpoint::WeightSource> with_adapters(std::unique_ptr<checkpoint::WeightSource> base,
                                                        const config::ModelConfig& model,
                                                        const std::vector<std::string>& adapters);

/// The last of these adapters that is a checkpoint of te-train: its config and kept files are of the run that trained
/// the weights. Null if all are PEFT folders, which name no run.
std::unique_ptr<checkpoint::Reader> last_run(const std::vector<std::string>& adapters);

/// The weights of an adapter checkpoint: the base that its manifest names, with the adapter. UserError if the
/// base has changed.
std::unique_ptr<checkpoint::WeightSource> open_adapted(const checkpoint::Reader& adapter);

/// Writes an adapter checkpoint in PEFT's format: FP32, as after training. UserError if PEFT has no such adapter.
/// Returns the number of tensors.
int64_t write_peft(const checkpoint::Reader& reader, const std::filesystem::path& folder);

/// Writes the weights of a source, with the dtypes of its tensors, as DIRECTORY/step_00000000, and DIRECTORY/latest.
/// `config`: YAML of a run with the model. Calls progress(bytes written so far).
int64_t write_weights(const checkpoint::WeightSource& source, const std::string& config,
                      const std::filesystem::path& directory, const std::function<void(int64_t)>& progress);

}  // namespace te::convert
