// A trained model, wherever it comes from: its config, its tokenizer and its weights under te-train's names.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "config/config.h"
#include "core/device.h"
#include "generate/end_tokens.h"
#include "parameters/parameter_store.h"

namespace te::generate {

class ModelSource {
 public:
  virtual ~ModelSource() = default;

  const std::string& title() const { return title_; }  ///< for messages: path and what it is
  const config::ModelConfig& model() const { return model_; }
  /// Of the run that trained it; defaults where there was none.
  const config::PrecisionConfig& precision() const { return precision_; }
  /// Spec for make_tokenizer; empty where nothing names one.
  const std::string& tokenizer() const { return tokenizer_; }
  /// Those that the model's files name; empty where they name none.
  const EndTokens& end_tokens() const { return end_tokens_; }

  /// Rows a parameter has here; the vocabulary's may be padded otherwise than the model's. UserError when it is missing
  /// or its rows are not `cols` wide.
  virtual int64_t rows(const std::string& parameter, int64_t cols) const = 0;
  /// Rows [first, first + count) as FP32. UserError when the file is damaged.
  virtual void read_rows(const std::string& parameter, int64_t first, int64_t count, float* out) const = 0;

 protected:
  std::string title_, tokenizer_;
  config::ModelConfig model_;
  config::PrecisionConfig precision_;
  EndTokens end_tokens_;
};

/// A checkpoint of te-train (a step folder, or a checkpoint directory: its latest), a Hugging Face folder or a file of
/// llama2.c. UserError when the path is none of these.
std::unique_ptr<ModelSource> open_model(const std::filesystem::path& path);

/// Fills the values of this rank's parameters, rounded to the model's dtype. Rows of the padded vocabulary that the
/// source lacks become 0. UserError when the source's shapes are others.
void load_weights(const Context& context, const ModelSource& source, parameters::ParameterStore& parameters);

}  // namespace te::generate
