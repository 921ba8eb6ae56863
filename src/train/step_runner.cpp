#include "train/step_runner.h"

#include <algorithm>

namespace te::train {

StepRunner::StepRunner(const config::Config& config, const Context& context)
    : config_(config),
      context_(context),
      model_(config),
      optimizer_(config, model_.parameters(), model_.groups()) {
  model_.plan(plan_, context_);
  optimizer_.plan(plan_);
  const int64_t microbatches = config.training.global_batch_size / config.training.micro_batch_size;
  plan_.add(tokens_, "tokens", MemoryKind::data, DType::i32, {microbatches, model_.dims().tokens});
  plan_.add(targets_, "targets", MemoryKind::data, DType::i32, {microbatches, model_.dims().tokens});
  plan_.add(valid_loss_, "valid_loss", MemoryKind::data, DType::f32, {1});
}

void StepRunner::allocate() {
  memory_ = plan_.allocate(context_);
  model_.bind(context_);
}

HostBatch StepRunner::make_host_batch() const {
  const size_t bytes =
      static_cast<size_t>(config_.training.global_batch_size * config_.model.seq_length) * sizeof(int32_t);
  return {HostBuffer(context_, bytes), HostBuffer(context_, bytes), 0};
}

void StepRunner::microbatch(int64_t index, int64_t first_sample, float grad_scale, bool count_fp8) {
  const int64_t tokens = model_.dims().tokens;
  model::Pass pass;
  pass.first_sample = first_sample + index * config_.training.micro_batch_size;
  pass.dropout_seed = config_.training.seed;
  pass.count_fp8 = count_fp8;
  model_.forward_backward(context_, tokens_.slice_rows(index, 1).view({tokens}),
                          targets_.slice_rows(index, 1).view({tokens}), grad_scale, optimizer_.loss_sum(),
                          pass);
}

void StepRunner::launch(const HostBatch& batch, int64_t step, int64_t first_sample, bool count_fp8) {
  // 1. Samples. The loss is the mean over the counted tokens of the global batch, so every microbatch's
  //    gradient is scaled by their number.
  context_.copy_to_device(tokens_, batch.tokens.as<void>());
  context_.copy_to_device(targets_, batch.targets.as<void>());
  const float grad_scale = 1.0f / static_cast<float>(std::max<int64_t>(1, batch.counted));
  // 2. Microbatches; gradients accumulate.
  optimizer_.begin_step(context_);
  if (count_fp8) model_.recipe().table().zero_counters(context_);
  for (int64_t index = 0; index < tokens_.dim(0); ++index)
    microbatch(index, first_sample, grad_scale, count_fp8);
  // 3. Gradient norm, clipping, AdamW.
  optimizer_.step(context_, optimizer_.schedule().at(step));
  // 4. FP8 scales from this step's amaxes, then the weights in FP8 for the next step.
  model_.recipe().update(context_, optimizer_.skip_flag());
  model_.quantize_weights(context_, count_fp8);
  // 5. What the host wants to know.
  optimizer_.fetch_status(context_);
}

void StepRunner::calibrate(const HostBatch& batch) {
  context_.copy_to_device(tokens_, batch.tokens.as<void>());
  context_.copy_to_device(targets_, batch.targets.as<void>());
  optimizer_.begin_step(context_);
  microbatch(0, 0, 1.0f / static_cast<float>(std::max<int64_t>(1, batch.counted)), false);
  model_.recipe().update(context_, nullptr);
  model_.quantize_weights(context_);
  context_.synchronize();
}

void StepRunner::begin_evaluation() {
  context_.zero(valid_loss_);
}

void StepRunner::evaluate(const int32_t* tokens, const int32_t* targets) {
  const int64_t count = model_.dims().tokens;
  const Tensor device_tokens = tokens_.slice_rows(0, 1).view({count});
  const Tensor device_targets = targets_.slice_rows(0, 1).view({count});
  context_.copy_to_device(device_tokens, tokens);
  context_.copy_to_device(device_targets, targets);
  model_.evaluate(context_, device_tokens, device_targets, valid_loss_);
  context_.synchronize();  // the host arrays must outlive their copies
}

double StepRunner::finish_evaluation() {
  float sum = 0;
  context_.copy_to_host(&sum, valid_loss_);
  context_.synchronize();
  return sum;
}

}  // namespace te::train
