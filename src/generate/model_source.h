// A trained model from any source: its config, tokenizer and weights under te-train's names.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/reader.h"
#include "checkpoint/weight_source.h"
#include "config/config.h"
#include "core/device.h"
#include "generate/end_tokens.h"
#include "parameters/parameter_store.h"

namespace te::generate {

class ModelSource {
 public:
  const std::string& title() const { return title_; }  ///< for messages: path and step
  const config::ModelConfig& model() const { return model_; }
  /// The precision of the training run; defaults if unknown.
  const config::PrecisionConfig& precision() const { return precision_; }
  /// The data of the training run; nullopt if unknown or synthetic, as after te-convert import and for foreign models.
  const std::optional<config::DataConfig>& data() const { return data_; }
  /// Argument for make_tokenizer(); empty if unknown.
  const std::string& tokenizer() const { return tokenizer_; }
  /// The end tokens in the model's files; nullopt if they do not say.
  const std::optional<EndTokens>& end_tokens() const { return end_tokens_; }
  /// unused_generation_keys() of the model's files.
  const std::vector<std::string>& unused_generation_keys() const { return unused_generation_keys_; }
  const checkpoint::WeightSource& weights() const { return *weights_; }

 protected:
  friend std::unique_ptr<ModelSource> open_model(const std::filesystem::path& path,
                                                 const std::vector<std::string>& adapters);

  /// Takes config, tokenizer and kept files from a checkpoint of te-train.
  void take_run(const checkpoint::Reader& reader);

  std::string title_, tokenizer_;
  std::filesystem::path files_;  ///< folder with the tokenizer and generation_config.json
  config::ModelConfig model_;
  config::PrecisionConfig precision_;
  std::optional<config::DataConfig> data_;
  std::optional<EndTokens> end_tokens_;
  std::vector<std::string> unused_generation_keys_;
  std::unique_ptr<checkpoint::WeightSource> weights_;
};

/// A checkpoint of te-train (a step folder, or a checkpoint directory: its latest), a Hugging Face folder or a file of
/// llama2.c; of an adapter checkpoint its base with the adapter. `adapters`: paths of adapters that are added
/// (convert/adapter.h). Config and tokenizer belong to the last run, which trained the weights. UserError if a path is
/// none of these.
std::unique_ptr<ModelSource> open_model(const std::filesystem::path& path,
                                        const std::vector<std::string>& adapters = {});

/// Loads this rank's parameters, rounded to the model's dtype. Padding rows of the vocabulary that the source lacks
/// become 0. UserError if the source has other shapes.
void load_weights(const Context& context, const ModelSource& source, parameters::ParameterStore& parameters);

}  // namespace te::generate
