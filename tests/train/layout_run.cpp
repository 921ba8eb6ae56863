#include "layout_run.h"

#include <algorithm>
#include <limits>

#include "core/float_types.h"
#include "core/random.h"
#include "core/targets.h"
#include "data/sampler.h"
#include "train/loss_scaler.h"
#include "train/step_precision.h"

namespace te::testing {
namespace {

using parameters::Parameter;
using parameters::ParameterStore;
using train::StepRunner;

constexpr uint64_t kValidSamples = 1 << 20;  ///< validation samples are numbered from here

// --- data --------------------------------------------------------------------------------------------------

/// A rule that the model can learn (the next token is a function of the last one), with a few targets left out, more of
/// them in some samples than in others.
void fill_sample(const config::ModelConfig& model, uint64_t sample, int32_t* tokens, int32_t* targets) {
  for (int64_t i = 0; i < model.seq_length; ++i) {
    const Philox4 random = philox(7, sample, static_cast<uint64_t>(i));
    const auto vocab = static_cast<uint32_t>(model.vocab_size);
    const uint32_t token = random.word[0] % vocab;
    const bool ignored = random.word[1] % 16 < sample % 4, padding = random.word[2] % 2 == 0;
    tokens[i] = static_cast<int32_t>(token);
    targets[i] = !ignored  ? static_cast<int32_t>((5 * token + 1) % vocab)
                 : padding ? kPaddingTarget
                           : kIgnoredTarget;
  }
}

struct Samples {
  std::vector<int32_t> tokens, targets;
  int64_t counted = 0, unpadded = 0;
};

Samples samples(const config::ModelConfig& model, uint64_t first, int64_t count) {
  Samples result;
  const auto size = static_cast<size_t>(count * model.seq_length);
  result.tokens.resize(size);
  result.targets.resize(size);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = i * model.seq_length;
    fill_sample(model, first + static_cast<uint64_t>(i), &result.tokens[at], &result.targets[at]);
  }
  result.counted = std::ranges::count_if(result.targets, [](int32_t target) { return target >= 0; });
  result.unpadded = count * model.seq_length - std::ranges::count(result.targets, kPaddingTarget);
  return result;
}

/// The tokens of full samples that this context-parallel rank holds.
Samples of_context_rank(const StepRunner& runner, const Samples& whole) {
  const parallel::SequenceSplit& split = runner.split();
  const int64_t count = static_cast<int64_t>(whole.tokens.size()) / split.seq();
  Samples own;
  own.tokens.resize(static_cast<size_t>(count * split.local()));
  own.targets.resize(own.tokens.size());
  split.copy_local(whole.tokens.data(), count, own.tokens.data());
  split.copy_local(whole.targets.data(), count, own.targets.data());
  return own;
}

// --- what a rank holds ---------------------------------------------------------------------------------------

std::vector<float> floats(const Context& context, const Tensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.numel()));
  if (tensor.dtype == DType::f32) {
    context.copy_to_host(values.data(), tensor);
    context.synchronize();
    return values;
  }
  TE_CHECK(tensor.dtype == DType::bf16, "a gradient is FP32 or BF16");
  std::vector<bfloat16> halves(values.size());
  context.copy_to_host(halves.data(), tensor);
  context.synchronize();
  std::transform(halves.begin(), halves.end(), values.begin(), [](bfloat16 x) { return to_float(x); });
  return values;
}

template <class TensorOf>
Parts parts_of(const Context& context, const ParameterStore& store, TensorOf&& tensor_of) {
  Parts parts;
  for (const Parameter& parameter : store.parameters()) {
    if (!parameter.trainable) continue;
    const parameters::ParameterShard& shard = parameter.shard;
    for (const ParameterStore::ShardRange& range : store.shard_ranges(parameter)) {
      Part part{parameter.name, shard.global.numel(), {}, floats(context, tensor_of(parameter, range))};
      for (const auto& extent : shard.extents(range.local, range.local + range.count)) {
        for (int64_t i = extent.in_range; i < extent.in_range + extent.count; ++i) {
          part.index.push_back((extent.row + i / shard.cols) * shard.global_cols() + shard.first_col +
                               i % shard.cols);
        }
      }
      TE_CHECK(part.index.size() == part.value.size(), "{}: {} indices of {} elements", part.name,
               part.index.size(), part.value.size());
      parts.push_back(std::move(part));
    }
  }
  return parts;
}

/// Gradients divided by the loss scale.
Parts gradients(const Context& context, StepRunner& runner, double loss_scale) {
  const ParameterStore& store = runner.model().parameters();
  Parts parts =
      parts_of(context, store, [&](const Parameter& parameter, const ParameterStore::ShardRange& range) {
        const int64_t first = parameter.offset + range.local;
        return store.grad_of(first, first + range.count);
      });
  for (Part& part : parts)
    for (float& value : part.value) value /= static_cast<float>(loss_scale);
  return parts;
}

Parts main_parameters(const Context& context, StepRunner& runner) {
  const ParameterStore& store = runner.model().parameters();
  return parts_of(context, store, [&](const Parameter& parameter, const ParameterStore::ShardRange& range) {
    return store.main_of(parameter, range).fp32;
  });
}

std::map<std::string, std::vector<float>> fp8_state(const Context& context, StepRunner& runner) {
  std::map<std::string, std::vector<float>> state;
  const fp8::ScaleTable& table = runner.model().recipe().table();
  if (table.size() == 0) return state;
  const std::vector<float> scale = floats(context, table.scale);
  const std::vector<float> history = table.history ? floats(context, table.history) : std::vector<float>{};
  const auto n = static_cast<size_t>(table.size());
  for (size_t i = 0; i < n; ++i) {
    const fp8::OperandInfo& info = table.info(static_cast<int>(i));
    std::vector<float>& column = state[info.linear.name() + " " + fp8::role_name(info.role)];
    column.push_back(scale[i]);
    for (size_t row = 0; row < history.size() / n; ++row) column.push_back(history[row * n + i]);
  }
  return state;
}

// --- the run -------------------------------------------------------------------------------------------------

/// Fills all gradients with NaN, so that a step fails visibly if it reads or accumulates one without writing or zeroing
/// it first; also the slots of sharded layers, which are unused between steps.
void spoil_gradients(const Context& context, StepRunner& runner) {
  const ParameterStore& store = runner.model().parameters();
  runner.optimizer().gatherer().wait_all(context);
  runner.optimizer().gatherer().invalidate();
  context.fill_bytes(store.grads, 0xff);
  for (const parameters::Bucket& bucket : store.buckets()) {
    if (store.shards_grads(bucket)) context.fill_bytes(store.grads_of(bucket), 0xff);
    if (store.shards_values(bucket))
      context.fill_bytes(store.gathers_bytes(bucket) ? store.bytes_of(bucket) : store.values_of(bucket),
                         0xff);
  }
}

void start(const Context& context, StepRunner& runner, const config::Config& config) {
  runner.allocate();
  runner.initialize();
  if (!runner.model().recipe().needs_calibration()) return;
  const Samples all = samples(config.model, 0, config.training.global_batch_size);
  spoil_gradients(context, runner);
  const Samples own = of_context_rank(runner, all);
  const train::HostMicrobatch first{own.tokens.data(), own.targets.data()};
  runner.calibrate({&first, 1}, all.counted);
}

double validation_loss(StepRunner& runner, const config::Config& config, int microbatches) {
  const int ranks = runner.groups().grid()[parallel::Axis::data];
  const int64_t size = config.training.micro_batch_size;
  int64_t counted = 0;
  runner.begin_evaluation();
  for (int i = 0; i < microbatches; ++i) {
    const Samples batch = samples(config.model, kValidSamples + static_cast<uint64_t>(i * size), size);
    counted += batch.counted;
    if (i % ranks != runner.groups().at()[parallel::Axis::data]) continue;
    const Samples own = of_context_rank(runner, batch);
    runner.evaluate({own.tokens.data(), own.targets.data()});
  }
  return runner.finish_evaluation() / static_cast<double>(counted);
}

}  // namespace

Trace train_small(const config::Config& config, const parallel::Groups& groups, const RunOptions& options) {
  const Context context = Context::cpu();
  StepRunner runner(config, context, groups, options.data_parallel);
  start(context, runner, config);
  train::HostBatch batch = runner.make_host_batch();
  const int64_t global = config.training.global_batch_size, seq = config.model.seq_length;
  const train::LossScaler scaler(config.precision);
  const double loss_scale = scaler.factor(scaler.start({}));
  Trace trace;
  trace.buckets = runner.model().parameters().buckets().size();
  for (int step = 1; step <= options.steps; ++step) {
    const int64_t first = (step - 1) * global;
    const Samples all = samples(config.model, static_cast<uint64_t>(first), global);
    const int64_t from = runner.first_local_sample() * seq;
    runner.split().copy_local(all.tokens.data() + from, runner.local_samples(), batch.tokens.as<int32_t>());
    runner.split().copy_local(all.targets.data() + from, runner.local_samples(), batch.targets.as<int32_t>());
    batch.counted = all.counted, batch.unpadded = all.unpadded;
    spoil_gradients(context, runner);
    train::set_step_precision(context, runner, train::step_in_bf16(config.precision, 0, step));
    runner.launch(batch, step, first, step == 2, std::numeric_limits<double>::infinity(), loss_scale);
    context.synchronize();
    const optim::StepStatus status = runner.optimizer().status();
    runner.optimizer().finish_step(status.skipped != 0);
    trace.loss.push_back(double{status.loss_sum} / static_cast<double>(all.counted));
    trace.grad_norm.push_back(status.grad_norm);
    if (config.training.z_loss_coefficient != 0.0)
      trace.z_loss.push_back(double{status.z_loss_sum} / static_cast<double>(all.counted));
    if (std::ranges::count(options.grads_at, step) > 0)
      trace.grads[step] = gradients(context, runner, loss_scale);
    if (step == 1 || step == options.steps) trace.fp8[step] = fp8_state(context, runner);
  }
  trace.mains = main_parameters(context, runner);
  trace.valid_loss = validation_loss(runner, config, options.valid_microbatches);
  return trace;
}

}  // namespace te::testing
