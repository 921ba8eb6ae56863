#include "train/execution.h"

namespace te::train {
namespace {

GemmAutotune autotune(config::GemmAutotune mode) {
  switch (mode) {
    case config::GemmAutotune::off:
      return GemmAutotune::off;
    case config::GemmAutotune::cached:
      return GemmAutotune::cached;
    case config::GemmAutotune::on:
      return GemmAutotune::on;
    case config::GemmAutotune::full:
      return GemmAutotune::full;
  }
  internal_error("unknown gemm_autotune", std::source_location::current());
}

}  // namespace

ExecutionOptions execution_options(const config::Config& config) {
  return {.gemm_autotune = autotune(config.training.gemm_autotune),
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

parallel::ScheduleKind schedule_kind(config::PipelineSchedule schedule) {
  switch (schedule) {
    case config::PipelineSchedule::gpipe:
      return parallel::ScheduleKind::gpipe;
    case config::PipelineSchedule::one_f_one_b:
      return parallel::ScheduleKind::one_f_one_b;
    case config::PipelineSchedule::interleaved:
      return parallel::ScheduleKind::interleaved;
    case config::PipelineSchedule::zero_bubble:
      return parallel::ScheduleKind::zero_bubble;
  }
  internal_error("unknown schedule", std::source_location::current());
}

}  // namespace te::train
