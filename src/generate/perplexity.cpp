#include "generate/perplexity.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/clock.h"
#include "core/error.h"
#include "core/memory_plan.h"
#include "kernels/attention/attention.h"
#include "model/model_stage.h"
#include "parallel/watchdog.h"

namespace te::generate {
double Perplexity::perplexity() const {
  return std::exp(loss);
}

int64_t documents_per_sample(const data::BatchSource& data, int64_t batch) {
  int64_t most = 1;  // in a pass
  for (int64_t first = 0; first < data.num_samples(); first += batch) {
    const std::vector<int32_t> starts = data.batch(first, batch, true).document_start;
    most = std::max(most, kernels::count_documents(starts.data(), batch, data.seq_length()));
  }
  return (most + batch - 1) / batch;
}

Perplexity evaluate(const config::Config& config, const Context& context, const parallel::Groups& groups,
                    parallel::World& world, const ModelSource& source, const data::BatchSource& data,
                    const std::function<void(int64_t)>& progress) {
  model::ModelStage stage(config, groups);
  MemoryPlan plan;
  PlannedTensor tokens, targets, document_start, loss_sum, out;
  stage.plan(plan, context, {.training = false});
  const int64_t count = stage.dims().tokens;
  if (!groups.last_stage())
    plan.add(out, "residual_out", MemoryKind::data, stage.dims().dtype,
             {stage.dims().residual_rows, stage.dims().hidden});
  plan.add(tokens, "tokens", MemoryKind::data, DType::i32, {count});
  plan.add(targets, "targets", MemoryKind::data, DType::i32, {count});
  if (config.data.document_mask)  // of the whole sequences, on all context-parallel ranks
    plan.add(document_start, "document_start", MemoryKind::data, DType::i32,
             {config.training.micro_batch_size * data.seq_length()});
  plan.add(loss_sum, "loss_sum", MemoryKind::data, DType::f32, {1});
  const DeviceBuffer memory = plan.allocate(context);
  stage.bind(context);
  world.run_collectively([&] { load_weights(context, source, stage.parameters()); });
  stage.quantize_weights(context);

  const parallel::SequenceSplit& split = stage.context_ranks().split();
  std::vector<int32_t> own_tokens(static_cast<size_t>(count)), own_targets(own_tokens.size());
  Perplexity result;
  double sum = 0;
  const double start = now_seconds();
  const int64_t batch = config.training.micro_batch_size;
  for (int64_t first = 0; first < data.num_samples(); first += batch) {
    const data::Batch samples = data.batch(first, batch, config.data.document_mask);
    split.copy_local(samples.tokens.data(), batch, own_tokens.data());
    split.copy_local(samples.targets.data(), batch, own_targets.data());
    context.copy_to_device(tokens, own_tokens.data());
    context.copy_to_device(targets, own_targets.data());
    if (document_start) context.copy_to_device(document_start, samples.document_start.data());
    context.zero(loss_sum);
    if (!groups.first_stage())
      groups.receive(context, stage.input({}), parallel::Channel::forward_from_previous);
    stage.forward(context, {}, tokens, targets, 0.0f, loss_sum, out,
                  {.kind = model::PassKind::evaluate, .document_start = document_start, .targets = targets});
    if (!groups.last_stage()) groups.send(context, out, parallel::Channel::forward_to_next);
    float loss = 0;  // of this rank's tokens, on tensor-parallel rank 0 of the last stage
    const parallel::Watchdog::Guard guard(context, "evaluation");
    context.copy_to_host(&loss, loss_sum);
    context.synchronize();
    sum += loss;
    result.samples += std::min(batch, data.num_samples() - first);
    result.tokens += std::ranges::count_if(samples.targets, [](int32_t target) { return target >= 0; });
    if (progress) progress(result.samples);
  }
  if (result.tokens == 0) user_error("--data: the dataset has no token to predict");
  result.loss = world.sum_f64(sum) / static_cast<double>(result.tokens);
  result.seconds = now_seconds() - start;
  if (!std::isfinite(result.loss)) user_error("the loss is not finite; the model's weights are damaged");
  return result;
}

}  // namespace te::generate
