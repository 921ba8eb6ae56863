#include "train/execution.h"

namespace te::train {
ExecutionOptions execution_options(const config::Config& config) {
  return {.gemm_autotune = config.training.gemm_autotune,
          .deterministic_attention = config.training.deterministic,
          .tf32 = config.precision.tf32};
}

parallel::ConnectOptions connect_options(const config::Config& config) {
  parallel::ConnectOptions options;
  options.use_tensor_copy_engines = config.parallel.tensor_copies();
  options.tensor_copy_engines_optional = config.parallel.transport == config::Transport::automatic;
  options.use_data_copy_engines = options.use_pipeline_copy_engines = config.parallel.other_copies();
  return options;
}

}  // namespace te::train
