// How a trained model is run: on which device, in which precision, on how many ranks. Shared by generation and
// evaluation.
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
      "off";  ///< off, hybrid or e4m3, with the checkpoint's recipe; tensorwise in place of delayed
  int64_t tensor = 1, pipeline = 1;  ///< ranks that share the model: slices of all layers, and stages of it
  int64_t context = 1;   ///< ranks that share the tokens of a sequence: for passes over whole ones
  int64_t replicas = 1;  ///< of the model, which divide the work
  std::string gemm_chains = "auto";  ///< auto, on or off: DecoderSizes::megakernel, of generation

  int64_t ranks_of_model() const { return tensor * context * pipeline; }
};

/// Collective. UserError when a GPU is asked for and not there.
Context open_device(parallel::World& world, const std::string& device,
                    const ExecutionOptions& execution = {});

/// What is wanted of the output layer: a decoder's logits, which it computes in high precision, or losses, for which it
/// runs as in training.
enum class OutputLayerUse : uint8_t { logits, losses };

/// The model with sequences of `seq_length` in passes of `batch` of them. UserError when model and options do not go
/// together, as config::validate says it.
config::Config run_config(const ModelSource& source, const RunOptions& options, bool cuda, int64_t seq_length,
                          int64_t batch, OutputLayerUse use = OutputLayerUse::logits);

/// One line that says so where the output layer was trained in FP8 and does not run in it for `use`; else empty.
std::string output_layer_note(const ModelSource& source, const config::Config& run, OutputLayerUse use);

/// Connects the ranks; collective. UserError (JobFailure) when the job has another number of ranks.
parallel::Groups connect(parallel::World& world, const Context& context, const RunOptions& options);

/// The longest sequence that a model can take: its table of positions, or what it was trained or published for.
int64_t longest_sequence(const config::ModelConfig& model);

}  // namespace te::generate
