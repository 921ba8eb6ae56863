#include "generate/run_config.h"

#include <algorithm>

#include "config/precision_overrides.h"
#include "config/validate_device.h"
#include "core/error.h"
#include "fp8/recipe.h"
#include "parallel/process_grid.h"

namespace te::generate {

config::Config run_config(const ModelSource& source, const RunOptions& options, const Context& context,
                          int64_t seq_length, int64_t batch, OutputLayerUse use) {
  config::Config config;
  config.name = "generate";
  config.model = source.model();
  config.model.seq_length = seq_length;
  config.model.max_position_embeddings = std::max(config.model.max_position_embeddings, seq_length);
  config.model.hidden_dropout = config.model.attention_dropout = 0.0;
  config.model.pad_vocabulary_for(options.tensor);  // load_weights() fills rows that the file lacks
  // The precision of training, without state over several steps (see also output_layer_note()).
  config.precision = fp8::stateless_precision(source.precision());
  config.precision.dtype = context.is_cuda() ? config::ComputeDType::bf16 : config::ComputeDType::fp32;
  if (options.dtype != "auto" && !config::from_string(options.dtype, config.precision.dtype))
    user_error("--dtype {}: must be auto, bf16, fp16 or fp32", options.dtype);
  if (use == OutputLayerUse::logits) config.precision.fp8_output_layer = false;
  if (!config::from_string(options.fp8, config.precision.fp8))
    user_error("--fp8 {}: must be off, hybrid or e4m3", options.fp8);
  config.parallel.tensor = options.tensor;
  if (config.model.num_moe_experts > 0) {
    // As in training, tensor-parallel ranks hold whole experts. Passes over full sequences divide the tokens; a decoder
    // has too few of them, so that each rank computes all.
    config.parallel.sequence = options.tensor > 1;
    config.model.moe_router_load_balancing_type = {};  // only training balances
  }
  config.parallel.pipeline = options.pipeline;
  config.parallel.pipeline_split = "even";
  config.parallel.context = options.context;
  config.training.micro_batch_size = config.training.global_batch_size = batch;
  config.training.train_steps = 1;
  config.training.recompute = config::Recompute::full;  // one set of activations for all layers
  config.data.synthetic = true;                         // the config needs no dataset
  config::resolve_defaults(config);
  config::validate(config);
  config::validate_for_device(config, device_caps(context));
  return config;
}

std::string output_layer_note(const ModelSource& source, const config::Config& run, OutputLayerUse use) {
  const auto in_fp8 = [&](const config::PrecisionConfig& precision) {
    return config::linear_precision(precision, {0, LinearKind::output_layer}, run.model.num_layers).fprop;
  };
  if (!in_fp8(source.precision()) || (use == OutputLayerUse::losses && in_fp8(run.precision))) return {};
  return fmt::format("{}: its output layer was trained in FP8 and runs in {} here", source.title(),
                     config::to_string(run.precision.dtype));
}

parallel::Groups connect(parallel::World& world, const Context& context, const RunOptions& options) {
  world.run_collectively([&] {
    const int64_t ranks = options.ranks_of_model();
    if (world.size() == ranks * options.replicas) return;
    const std::string context_ranks =
        options.context == 1 ? "" : fmt::format(", --context-ranks {}", options.context);
    user_error(
        "--tensor {}{} and --pipeline {} need a job of {} ranks, but this job has {}; start it with mpirun "
        "-n {}",
        options.tensor, context_ranks, options.pipeline, ranks, world.size(), ranks);
  });
  return parallel::Groups::connect(
      world, context,
      parallel::ProcessGrid::of(world.size(), static_cast<int>(options.tensor),
                                static_cast<int>(options.context), static_cast<int>(options.pipeline)));
}

int64_t longest_sequence(const config::ModelConfig& model) {
  return std::max(model.seq_length, model.max_position_embeddings);
}

}  // namespace te::generate
