#include "train/execution.h"

namespace te::train {
ExecutionOptions execution_options(const config::Config& config) {
  return {.gemm_autotune = config.training.gemm_autotune,
          .deterministic_attention = config.training.deterministic,
          .tf32 = config.precision.tf32};
}

parallel::ConnectOptions connect_options(const config::Config& config) {
  parallel::ConnectOptions options;
  options.use_tensor_copy_engines =
      config.parallel.sequence && config.parallel.tensor_transport == config::Transport::copy;
  options.use_data_copy_engines = config.parallel.data_transport == config::Transport::copy;
  options.use_pipeline_copy_engines = config.parallel.pipeline_transport == config::Transport::copy;
  return options;
}

}  // namespace te::train
