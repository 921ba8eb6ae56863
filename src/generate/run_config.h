// How a trained model runs: device, precision and parallel layout. Used by generation and evaluation.
#pragma once

#include <cstdint>
#include <string>

#include "config/config.h"
#include "generate/model_source.h"
#include "parallel/groups.h"
#include "parallel/world.h"

namespace te::generate {

struct RunOptions {
  std::string device = "auto";  ///< auto, cpu or cuda
  std::string dtype = "auto";   ///< bf16, fp16 or fp32; auto: bf16 on a GPU, fp32 on the CPU
  std::string fp8 =
      "off";  ///< off, hybrid or e4m3, with the checkpoint's recipe; tensorwise instead of delayed
  int64_t tensor = 1, pipeline = 1;  ///< tensor-parallel and pipeline-parallel ranks
  int64_t context = 1;               ///< context-parallel ranks, only for passes over full sequences
  int64_t replicas = 1;              ///< replicas of the model, which divide the work
  std::string megakernel = "auto";   ///< auto, on or off: DecoderSizes::megakernel, for generation

  int64_t ranks_of_model() const { return tensor * context * pipeline; }
};

/// The use of the output layer: logits of a decoder, always in high precision, or losses, with the precision of
/// training.
enum class OutputLayerUse : uint8_t { logits, losses };

/// Sequences in the config of a Decoder, which pads its passes itself: whatever their length, they satisfy the rules of
/// all FP8 recipes about the number of tokens of a pass.
inline constexpr int64_t kDecoderSequences = 32;

/// A config for the model with `batch` sequences of `seq_length` tokens per pass. UserError of config::validate or
/// validate_for_device if model, options and device do not match.
config::Config run_config(const ModelSource& source, const RunOptions& options, const Context& context,
                          int64_t seq_length, int64_t batch, OutputLayerUse use = OutputLayerUse::logits);

/// A one-line note if the output layer was trained in FP8 but does not run in FP8 for `use`; else empty.
std::string output_layer_note(const ModelSource& source, const config::Config& run, OutputLayerUse use);

/// Connects the ranks; collective. UserError (JobFailure) if the job has another number of ranks.
parallel::Groups connect(parallel::World& world, const Context& context, const RunOptions& options);

/// The maximum sequence length of a model: max_position_embeddings or seq_length of training, whichever is larger.
int64_t longest_sequence(const config::ModelConfig& model);

}  // namespace te::generate
