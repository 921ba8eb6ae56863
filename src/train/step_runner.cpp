#include "train/step_runner.h"

#include <algorithm>

#include "parallel/watchdog.h"
#include "train/execution.h"

namespace te::train {
namespace {

parallel::Groups& single_groups() {
  static parallel::Groups groups = parallel::Groups::single();
  return groups;
}

}  // namespace

StepRunner::StepRunner(const config::Config& config, const Context& context)
    : StepRunner(config, context, single_groups()) {}

StepRunner::StepRunner(const config::Config& config, const Context& context, const parallel::Groups& groups,
                       const parameters::DataParallelOptions& options)
    : context_(context),
      micro_batch_size_(config.training.micro_batch_size),
      global_microbatches_(config.training.global_batch_size / config.training.micro_batch_size),
      seq_length_(config.model.seq_length),
      seed_(config.training.seed),
      document_mask_(config.data.document_mask),
      padded_(config.data.format == config::DataFormat::instruct),
      model_(config, groups),
      optimizer_({.optimizer = config.optimizer,
                  .seed = config.training.seed,
                  .tied_embeddings = config.model.tie_word_embeddings,
                  .z_loss = config.training.z_loss_coefficient != 0.0},
                 model_.parameters(), groups),
      pipeline_(config.training, config.parallel, context, model_),
      observer_(config.precision, model_.recipe()),
      swiglu_(config.model, model_.parameters()),
      local_samples_(config.training.global_batch_size / groups.grid()[parallel::Axis::data]) {
  TE_CHECK(!context.is_cuda() || context.options() == execution_options(config),
           "the context's options are not those of the config");
  if (config::mixes_precisions(config)) model_.recipe().keep_high_precision();
  optimizer_.set_before_update(
      [this](const Context& on, const int32_t* skip) { model_.update_router_bias(on, skip); });
  model::StageSlots slots = pipeline_.slots();
  slots.data_parallel = options;
  model_.plan(plan_, context_, slots);
  optimizer_.plan(plan_, model::live(model::Step::update));
  pipeline_.plan(plan_);
  if (config.logging.fp8_statistics_every > 0) {
    observer_.plan(plan_, config.logging.fp8_what_if);
    swiglu_.plan(plan_);
  }
  const Shape shape{local_samples_ / config.training.micro_batch_size, model_.dims().tokens};
  plan_.add(batch_.tokens, "tokens", MemoryKind::data, DType::i32, shape);
  plan_.add(batch_.targets, "targets", MemoryKind::data, DType::i32, shape);
  if (document_mask_) {
    plan_.add(batch_.document_start, "document_start", MemoryKind::data, DType::i32,
              {shape[0], config.training.micro_batch_size * seq_length_});
  }
  if (config.logging.loss_by_source && config.data.train.size() > 1) {
    plan_.add(sample_losses_, "sample_losses", MemoryKind::data, DType::f32, {local_samples_});
    host_sample_losses_ = HostBuffer(context, static_cast<size_t>(local_samples_) * sizeof(float));
  }
  plan_.add(valid_loss_, "valid_loss", MemoryKind::data, DType::f32, {1});
  optimizer_.gatherer().before_gather(
      [this](const Context& stream) { model_.quantize_sharded_weights(stream, counts_quantizations_); });
  // Weights of a bucket are waited for where they are first read; gradients are reduced when they are complete.
  model_.set_hooks({.before_parameters =
                        [this](const Context& stream, int64_t begin, int64_t end, int direction) {
                          optimizer_.gatherer().wait(stream, begin, end, direction);
                        },
                    .before_wgrads = [this](const Context& stream, int64_t begin,
                                            int64_t end) { optimizer_.reducer().open(stream, begin, end); },
                    .gradients_ready =
                        [this](const Context& stream, int64_t begin, int64_t end, bool last) {
                          if (optimizer_.reducer().in_flight())
                            optimizer_.reducer().ready(stream, begin, end, last);
                        }});
}

// --- setup -------------------------------------------------------------------------------------------------

void StepRunner::allocate() {
  host_memory_ = plan_.allocate_host(context_);
  memory_ = plan_.allocate(context_);
  if (parallel::PeerTransport* const copies = groups().tensor_peer_transport(); copies != nullptr)
    registered_ = copies->register_memory(context_, memory_.data(), memory_.bytes(), plan_.buffers());
  model_.bind(context_);
  optimizer_.bind(context_);
}

void StepRunner::initialize() {
  model_.initialize(context_, seed_);
  optimizer_.gatherer().gather_all(context_);
  weights_changed(false);
}

void StepRunner::publish_weights() {
  model_.parameters().finish_loading(context_);
  optimizer_.gatherer().gather_all(context_);
  weights_changed(false);
}

HostBatch StepRunner::make_host_batch() const {
  const auto bytes = [&](int64_t tokens) {
    return static_cast<size_t>(local_samples_ * tokens) * sizeof(int32_t);
  };
  const size_t own = bytes(split().local());
  HostBatch batch{HostBuffer(context_, own), HostBuffer(context_, own), {}, 0};
  if (document_mask_) batch.document_start = HostBuffer(context_, bytes(seq_length_));
  return batch;
}

// Counting quantization must happen in the step that reports it; otherwise each layer is quantized at its next use.
void StepRunner::weights_changed(bool count_fp8) {
  if (!count_fp8) return model_.weights_changed();
  optimizer_.gatherer().wait_all(context_);
  model_.quantize_weights(context_, true);
}

// --- steps -------------------------------------------------------------------------------------------------

void StepRunner::copy_batch(const HostBatch& batch) {
  context_.copy_to_device(batch_.tokens, batch.tokens.as<void>());
  context_.copy_to_device(batch_.targets, batch.targets.as<void>());
  if (batch_.document_start) context_.copy_to_device(batch_.document_start, batch.document_start.as<void>());
}

model::Pass StepRunner::training_pass(int64_t first_sample, int64_t microbatch) const {
  model::Pass pass;
  pass.first_sample = first_sample + first_local_sample() + microbatch * micro_batch_size_;
  pass.dropout_seed = seed_;
  pass.document_start = batch_.document_start_of(microbatch);
  if (padded_) pass.targets = batch_.targets_of(microbatch);
  return pass;
}

void StepRunner::launch(const HostBatch& batch, int64_t step, int64_t first_sample, bool count_fp8,
                        double largest_loss, double loss_scale) {
  if (!warm_ && context_.is_cuda() && groups().grid()[parallel::Axis::pipeline] > 1) warm_up(batch);
  // 1. Samples. The loss is the mean over the counted tokens of the global batch, so every microbatch's
  //    gradient is scaled by their number, and by the loss scale.
  copy_batch(batch);
  const auto gradient_scale = static_cast<float>(loss_scale);
  const float grad_scale = gradient_scale / static_cast<float>(std::max<int64_t>(1, batch.counted));
  optimizer_.prefetch(context_);
  const int64_t tokens = padded_ ? batch.unpadded : global_microbatches_ * micro_batch_size_ * seq_length_;
  const float auxiliary_scale = gradient_scale / static_cast<float>(std::max<int64_t>(1, tokens));
  // 2. Microbatches: gradients accumulate, and their reduction starts in the last backward pass.
  optimizer_.begin_step(context_);
  if (count_fp8) model_.recipe().table().zero_counters(context_);
  if (sample_losses_) context_.zero(sample_losses_);
  model_.reset_routing(context_);
  const int64_t microbatches = batch_.tokens.dim(0);
  optimizer_.reducer().begin(context_);
  pipeline_.run(context_, batch_, grad_scale, optimizer_.loss_sum(), [&](int64_t microbatch) {
    model::Pass pass = training_pass(first_sample, microbatch);
    pass.count_fp8 = count_fp8;
    pass.last_microbatch = microbatch + 1 == microbatches;
    pass.z_loss_sum = optimizer_.z_loss_sum();
    pass.auxiliary_scale = auxiliary_scale;
    if (sample_losses_) {
      pass.sequence_losses =
          parameters::ParameterStore::part(sample_losses_, microbatch * micro_batch_size_, micro_batch_size_);
    }
#ifndef NDEBUG
    pass.on_step = [this](const Context& context, model::Step at) {
      plan_.begin_step(context, static_cast<int>(at));
    };
#endif
    return pass;
  });
  // 3. Gradient norm, clipping, AdamW or Muon.
  const parallel::Watchdog::Guard guard(context_, fmt::format("the update of step {}", step));
#ifndef NDEBUG
  plan_.begin_step(context_, static_cast<int>(model::Step::update));
#endif
  counts_quantizations_ = count_fp8;
  optimizer_.step(context_, optimizer_.schedule().at(step),
                  static_cast<float>(largest_loss * static_cast<double>(std::max<int64_t>(1, batch.counted))),
                  gradient_scale);
  counts_quantizations_ = false;
  // 4. FP8 scales from this step's amaxes, then quantize the weights for the next step.
  model_.recipe().update(context_, optimizer_.skip_flag());
  weights_changed(count_fp8);
  // 5. Status for the host.
  optimizer_.fetch_status(context_);
  if (sample_losses_) context_.copy_to_host(host_sample_losses_.as<void>(), sample_losses_);
}

std::span<const float> StepRunner::sample_losses() const {
  if (!sample_losses_) return {};
  return {host_sample_losses_.as<const float>(), static_cast<size_t>(local_samples_)};
}

void StepRunner::copy_microbatch(const HostMicrobatch& microbatch) {
  context_.copy_to_device(batch_.tokens_of(0), microbatch.tokens);
  context_.copy_to_device(batch_.targets_of(0), microbatch.targets);
  if (batch_.document_start) context_.copy_to_device(batch_.document_start_of(0), microbatch.document_start);
}

void StepRunner::calibrate(std::span<const HostMicrobatch> microbatches, int64_t counted) {
  const parallel::Watchdog::Guard guard(context_, "FP8 calibration");
  const float grad_scale = 1.0f / static_cast<float>(std::max<int64_t>(1, counted));
  optimizer_.begin_step(context_);
  // 1. All operands, including weights, are quantized with current scaling.
  model_.recipe().begin_calibration(context_);
  weights_changed(false);
  for (const HostMicrobatch& microbatch : microbatches) {
    copy_microbatch(microbatch);
    model::Pass pass;
    pass.dropout_seed = seed_;
    pass.document_start = batch_.document_start_of(0);
    if (padded_) pass.targets = batch_.targets_of(0);
    pipeline_.run_one(context_, batch_, grad_scale, optimizer_.loss_sum(), pass);
    context_.synchronize();  // the host arrays must outlive their copies
  }
  model_.recipe().end_calibration(context_);
  // 2. Their amaxes give the first delayed scales, with which the weights are quantized.
  model_.recipe().update(context_, nullptr);
  weights_changed(false);
  context_.synchronize();
}

// The gradients of the pass are discarded by the step's begin_step(). Weights are quantized again before and after:
// before for the observer, and after so that the step finds their amaxes unchanged.
Fp8Statistics StepRunner::observe(const HostBatch& batch, int64_t first_sample) {
  const parallel::Watchdog::Guard guard(context_, "FP8 statistics");
  copy_batch(batch);
  optimizer_.begin_step(context_);
  observer_.begin(context_);
  model_.weights_changed(false);
  pipeline_.run_one(context_, batch_, 1.0f / static_cast<float>(std::max<int64_t>(1, batch.counted)),
                    optimizer_.loss_sum(), training_pass(first_sample, 0));
  observer_.end();
  model_.weights_changed(false);
  Fp8Statistics statistics;
  statistics.swiglu = swiglu_.measure(context_, [this](const parameters::Parameter& weight) {
    optimizer_.gatherer().wait(context_, weight.offset, weight.end());
  });
  statistics.operands = observer_.read(context_);
  return statistics;
}

checkpoint::TrainingState StepRunner::training_state() {
  return {.parameters = &model_.parameters(),
          .exp_avg = optimizer_.exp_avg,
          .exp_avg_sq = optimizer_.exp_avg_sq,
          .scales = &model_.recipe().table(),
          .wait_offload = [this] { optimizer_.wait_offload(); }};
}

// The second pass accumulates gradients, which uses other GEMM variants. Weights are quantized again, as in observe().
void StepRunner::warm_up(const HostBatch& batch) {
  const parallel::Watchdog::Guard guard(context_, "the first passes");
  std::vector<std::pair<Tensor, DeviceBuffer>> kept;
  for (const checkpoint::StateTensor& state : training_state().tensors())
    if (state.changed_by_passes)
      kept.emplace_back(state.tensor, DeviceBuffer(context_, state.tensor.bytes()));
  const auto copy_of = [](const Tensor& tensor, const DeviceBuffer& buffer) {
    return Tensor{buffer.data(), tensor.dtype, tensor.shape};
  };
  for (const auto& [tensor, buffer] : kept) context_.copy(copy_of(tensor, buffer), tensor);
  copy_batch(batch);
  optimizer_.begin_step(context_);
  for (int attempt = 0; attempt < 2; ++attempt)
    pipeline_.run_one(context_, batch_, 1.0f / static_cast<float>(std::max<int64_t>(1, batch.counted)),
                      optimizer_.loss_sum(), training_pass(0, 0));
  for (const auto& [tensor, buffer] : kept) context_.copy(tensor, copy_of(tensor, buffer));
  model_.weights_changed(false);
  context_.synchronize();
  warm_ = true;
}

void StepRunner::begin_evaluation() {
  context_.zero(valid_loss_);
}

void StepRunner::evaluate(const HostMicrobatch& microbatch) {
  const parallel::Watchdog::Guard guard(context_, "validation");
  copy_microbatch(microbatch);
  model::Pass pass{.kind = model::PassKind::evaluate};
  pass.document_start = batch_.document_start_of(0);
  pass.targets = batch_.targets_of(0);  // the last microbatch may lack samples
  pipeline_.run_one(context_, batch_, 0.0f, valid_loss_, pass);
  context_.synchronize();  // the host arrays must outlive their copies
}

double StepRunner::finish_evaluation() {
  const parallel::Watchdog::Guard guard(context_, "the end of validation");
  groups().world().all_reduce(context_, valid_loss_, parallel::ReduceOp::sum);
  float sum = 0;
  context_.copy_to_host(&sum, valid_loss_);
  context_.synchronize();
  return sum;
}

}  // namespace te::train
