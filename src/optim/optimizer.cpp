#include "optim/optimizer.h"

#include <algorithm>
#include <utility>

#include "comm/replica_check.h"
#include "kernels/adamw/adamw.h"
#include "kernels/grad_norm/grad_norm.h"

namespace te::optim {

namespace {

constexpr int kSlots = 4;  ///< slots of the ring: fetched, waiting, updated, written back

/// `codes`: the dtype of FP8 codes.
DType dtype_of(config::MomentDType dtype, DType codes) {
  if (dtype == config::MomentDType::fp8) return codes;
  return dtype == config::MomentDType::fp32 ? DType::f32 : DType::bf16;
}

}  // namespace

static_assert(sizeof(StepStatus) == 6 * sizeof(float), "field() addresses StepStatus as six words");

Optimizer::Optimizer(const OptimizerOptions& options, parameters::ParameterStore& parameters,
                     const parallel::Groups& groups)
    : config_(options.optimizer),
      seed_(options.seed),
      z_loss_(options.z_loss),
      parameters_(parameters),
      groups_(groups),
      reducer_(options.tied_embeddings, parameters, groups),
      gatherer_(parameters, groups),
      schedule_(schedule_of(options.optimizer)),
      update_groups_(options.optimizer, parameters),
      muon_(options.optimizer, parameters, groups, update_groups_) {}

Tensor Optimizer::field(int index, DType dtype) const {
  return {static_cast<char*>(status_.data) + index * sizeof(float), dtype, {1}};
}

// Elements that Muon does not update, in as few runs as possible: gaps after a parameter belong to its run.
void Optimizer::find_adamw_runs() {
  const std::vector<parameters::Segment>& segments = parameters_.segments();
  int64_t held = 0;
  const auto add = [&](size_t number, int64_t begin, int64_t end) {
    if (begin >= end) return;
    adamw_runs_.push_back({number, begin, end - begin});
    exp_avg_sq.runs.push_back({segments[number].shard + begin, end - begin, held});
    held += end - begin;
  };
  for (size_t number = 0; number < segments.size(); ++number) {
    const parameters::Segment& segment = segments[number];
    if (!parameters_.buckets()[number].trainable) continue;
    int64_t begin = 0;
    for (const parameters::Parameter& parameter : parameters_.parameters()) {
      if (!has_one_moment(config_.name, parameter)) continue;
      const int64_t from = std::max(parameter.offset, segment.begin) - segment.begin;
      const int64_t granules = kernels::granules_of(parameter.end()) * kernels::kAdamWGranule;
      const int64_t to = std::min(granules, segment.begin + segment.count) - segment.begin;
      if (from >= to) continue;
      add(number, begin, from);
      begin = to;
    }
    add(number, begin, segment.count);
  }
  exp_avg_sq.is_dense = held == parameters_.shard_size();
}

void Optimizer::plan(MemoryPlan& plan, Lifetime update) {
  const int64_t size = parameters_.shard_size();
  find_adamw_runs();
  int64_t with_both = 0;
  for (const AdamWRun& run : adamw_runs_) with_both += run.count;
  const bool offloads = config_.offload != config::Offload::none;
  const MemoryPlace place = offloads ? MemoryPlace::host : MemoryPlace::device;
  Moments::plan(plan, exp_avg, "exp_avg", dtype_of(config_.exp_avg_dtype, DType::e4m3), size, place);
  Moments::plan(plan, exp_avg_sq, "exp_avg_sq", dtype_of(config_.exp_avg_sq_dtype, DType::u8), with_both,
                place);
  if (offloads) plan_ring(plan);
  if (config_.name == config::OptimizerName::muon) muon_.plan(plan, update);
  if (exp_avg.values.dtype != DType::f32 || exp_avg_sq.values.dtype != DType::f32) {
    const std::vector<MomentRuns> segments = moment_runs(parameters_);
    for (const AdamWRun& run : adamw_runs_) runs_.push_back(segments[run.segment].part(run.begin, run.count));
    plan.add(run_table_, "moment_runs", MemoryKind::optimizer, DType::u8, {bytes_of(runs_)});
  }
  plan.add(status_, "step_status", MemoryKind::data, DType::u8, {static_cast<int64_t>(sizeof(StepStatus))});
  plan.add(scratch_, "grad_norm.scratch", MemoryKind::scratch, DType::f32,
           {kernels::sum_of_squares_scratch_elements()});
  update_groups_.plan(plan);
  reducer_.plan(plan);
}

// As large as the buffer allows. A small shard is divided, too, so that the slots are a fraction of it.
int64_t Optimizer::slot_elements(bool mains) const {
  constexpr int64_t kGranule = kernels::kAdamWGranule, kMinChunks = 16;
  const auto granule_bytes = [](const Moments& moments) {
    return kGranule * static_cast<int64_t>(dtype_size(moments.values.dtype)) + (moments.blocks() ? 1 : 0);
  };
  const int64_t bytes = granule_bytes(exp_avg) + granule_bytes(exp_avg_sq) +
                        (mains ? kGranule * static_cast<int64_t>(dtype_size(parameters_.mains.dtype)) : 0);
  const int64_t fitting = kOffloadBufferBytes / kSlots / bytes;
  const int64_t wanted = kernels::granules_of(parameters_.shard_size()) / kMinChunks;
  return std::max<int64_t>(1, std::min(fitting, wanted)) * kGranule;
}

void Optimizer::plan_ring(MemoryPlan& plan) {
  constexpr int64_t kGranule = kernels::kAdamWGranule;
  const bool mains = parameters_.layout().offload_mains && !parameters_.fp32();
  TE_CHECK(parameters_.layout().offload_mains == (config_.offload == config::Offload::state),
           "optimizer.offload {}: the store's FP32 master weights are in other memory",
           config::to_string(config_.offload));
  const int64_t slot = slot_elements(mains);
  split_adamw_runs(slot);
  std::vector<StateRing::Chunk> chunks;
  for (const AdamWRun& run : adamw_runs_)
    chunks.push_back({parameters_.segments()[run.segment].shard + run.begin, run.count});
  const int64_t slots = std::clamp<int64_t>(static_cast<int64_t>(chunks.size()), 1, kSlots);
  const auto add = [&](const Moments& moments, Planned<Moments>& in_slots, const char* name) {
    const auto kind = MemoryKind::offload_slots;
    plan.add({in_slots, in_slots.values}, name, kind, moments.values.dtype, {slots * slot});
    ring_.pass(moments.values, in_slots.values, 1);
    if (!moments.blocks()) return;
    plan.add({in_slots, in_slots.exponents}, fmt::format("{}.exponents", name), kind, DType::u8,
             {slots * slot / kGranule});
    ring_.pass(moments.exponents, in_slots.exponents, kGranule);
  };
  add(exp_avg, slot_exp_avg_, "exp_avg.slots");
  add(exp_avg_sq, slot_exp_avg_sq_, "exp_avg_sq.slots");
  if (mains) {
    plan.add(slot_mains_, "main_params.slots", MemoryKind::offload_slots, parameters_.mains.dtype,
             {slots * slot});
    ring_.pass(parameters_.mains, slot_mains_, 1);
  }
  ring_.lay_out(std::move(chunks), static_cast<int>(slots), slot);
}

void Optimizer::split_adamw_runs(int64_t longest) {
  std::vector<AdamWRun> chunks;
  for (const AdamWRun& run : adamw_runs_)
    for (int64_t at = 0; at < run.count; at += longest)
      chunks.push_back({run.segment, run.begin + at, std::min(longest, run.count - at)});
  adamw_runs_ = std::move(chunks);
}

void Optimizer::bind(const Context& context) {
  int64_t end = 0;
  for (MomentRuns& run : runs_) {
    run.device = parameters::ParameterStore::part(run_table_, end, run.bytes());
    context.copy_to_device(run.device, run.runs.data());
    end += run.bytes();
  }
  context.synchronize();
  update_groups_.bind(context, groups_);
}

void Optimizer::begin_step(const Context& context) {
  TE_CHECK(!reducer_.in_flight(), "a step begins while gradients of the previous one are being reduced");
  parameters_.reset_gradients(context);
  context.zero(status_);
}

void Optimizer::step(const Context& context, float lr, float largest_loss_sum, float gradient_scale) {
  // 1. Gradients of this rank's segments, summed over the ranks.
  reducer_.finish(context);
  // 2. Global gradient norm, the clipping coefficient, and whether the step is skipped.
  update_status(context, largest_loss_sum, gradient_scale);
  // 3. Moments, FP32 master weights, BF16 weights. The gathers of the previous step access the weights; if no pass has
  // run since then, they may not have been waited for.
  gatherer_.wait_all(context);
#ifndef NDEBUG
  comm::check_replicas(context, parameters_, groups_);
#endif
  if (before_update_) before_update_(context, skip_flag());
  for (size_t run = 0; run < adamw_runs_.size(); ++run) update(context, run, lr);
  muon_.update(context, {.momentum = exp_avg.values,
                         .lr = lr,
                         .grad_multiplier = field(4, DType::f32).as<float>(),
                         .skip = skip_flag()});
  if (!parameters_.flat_values()) parameters_.cast_values(context);
  // 4. Gather the BF16 weights of the other data-parallel ranks.
  gatherer_.start(context);
}

void Optimizer::update_status(const Context& context, float largest_loss_sum, float gradient_scale) {
  for (size_t number = 0; number < parameters_.segments().size(); ++number) {
    if (!parameters_.buckets()[number].trainable) continue;
    const parameters::Segment& segment = parameters_.segments()[number];
    kernels::sum_of_squares(context, parameters_.grad_of(segment), field(1, DType::f32), scratch_,
                            parameters_.flags_of(segment));
  }
  if (groups_.world().size() > 1) {
    const Tensor sums{status_.data, DType::f32, {z_loss_ ? 3 : 2}};  // loss_sum, sum_of_squares, z_loss_sum
    groups_.world().all_reduce(context, sums, parallel::ReduceOp::sum);
  }
  kernels::clip_coefficient(context, {.sum_of_squares = field(1, DType::f32),
                                      .loss = loss_sum(),
                                      .clip = static_cast<float>(config_.clip_grad),
                                      .largest_loss = largest_loss_sum,
                                      .gradient_scale = gradient_scale,
                                      .grad_norm = field(3, DType::f32),
                                      .multiplier = field(4, DType::f32),
                                      .skip = field(5, DType::i32)});
}

Optimizer::State Optimizer::fetch(const Context& context, size_t number) {
  using parameters::ParameterStore;
  const AdamWRun& run = adamw_runs_[number];
  const parameters::Segment& segment = parameters_.segments()[run.segment];
  const int64_t first = segment.shard + run.begin;
  parameters::MainParams main = parameters_.main_of(segment).part(run.begin, run.count);
  if (ring_.empty()) return {main, exp_avg.part(first, run.count), exp_avg_sq.part(first, run.count)};
  const int64_t at = ring_.fetch(context, number);
  if (slot_mains_)
    (main.fp32 ? main.fp32 : main.remainder) = ParameterStore::part(slot_mains_, at, run.count);
  return {main, slot_exp_avg_.part(at, run.count), slot_exp_avg_sq_.part(at, run.count)};
}

void Optimizer::update(const Context& context, size_t number, float lr) {
  using parameters::ParameterStore;
  const AdamWRun& run = adamw_runs_[number];
  const parameters::Segment& segment = parameters_.segments()[run.segment];
  const auto& [main, m, v] = fetch(context, number);
  const bool writes_values = !parameters_.fp32() && parameters_.flat_values();
  const auto part = [&](const Tensor& flat) { return ParameterStore::part(flat, run.begin, run.count); };
  kernels::adamw(context, {.main_param = main.fp32,
                           .main_grad = part(parameters_.grad_of(segment)),
                           .exp_avg = m.values,
                           .exp_avg_sq = v.values,
                           .exp_avg_exponents = m.exponents,
                           .exp_avg_sq_exponents = v.exponents,
                           .param = writes_values ? part(parameters_.value_of(segment)) : Tensor{},
                           .remainder = main.remainder,
                           .flags = flags_of(run),
                           .groups = update_groups_.adamw(),
                           .runs = runs_.empty() ? Tensor{} : runs_[number].device,
                           .seed = seed_,
                           .lr = lr,
                           .beta1 = static_cast<float>(config_.beta1),
                           .beta2 = static_cast<float>(config_.beta2),
                           .eps = static_cast<float>(config_.eps),
                           .weight_decay = static_cast<float>(config_.weight_decay),
                           .step = updates_ + 1,
                           .grad_multiplier = field(4, DType::f32).as<float>(),
                           .skip = skip_flag()});
  if (!ring_.empty()) ring_.write_back(context, number);
}

Tensor Optimizer::flags_of(const AdamWRun& run) const {
  return parameters::ParameterStore::part(parameters_.flags_of(parameters_.segments()[run.segment]),
                                          run.begin / kernels::kAdamWGranule,
                                          kernels::granules_of(run.count));
}

void Optimizer::fetch_status(const Context& context) {
  if (host_status_.bytes() == 0) host_status_ = HostBuffer(context, sizeof(StepStatus));
  context.copy_to_host(host_status_.as<void>(), status_);
}

}  // namespace te::optim
