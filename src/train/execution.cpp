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
  return options;
}

}  // namespace te::train
