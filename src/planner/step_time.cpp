#include "planner/step_time.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "model/pipeline_chunks.h"
#include "optim/optimizer.h"
#include "parallel/process_grid.h"
#include "parallel/schedule/schedule.h"
#include "parallel/schedule/simulate.h"
#include "planner/op_time.h"
#include "train/pipeline.h"
#include "train/summary.h"

namespace te::planner {

using parallel::Axis;

namespace {

bool puts_off(const config::Config& config) {
  return config.parallel.schedule == config::PipelineSchedule::zero_bubble && config.parallel.pipeline > 1;
}

/// Cost of one stage.
struct StageWork {
  Work forward, backward, wgrad;  ///< per microbatch
  double quantization = 0;
  GroupCounts parameters, of_layers;  ///< of the stage, and of its layers alone
  int64_t layers = 0;
};

/// The chunks of the pipeline in model order, and the stages made of them.
struct PipelineSplit {
  std::vector<StageWork> chunks, stages;
};

void add(StageWork& to, const LayerCost& unit) {
  to.forward += unit.forward;
  to.backward += unit.backward;
  to.wgrad += unit.wgrad;
  to.quantization += std::max(0.0, unit.first_forward.total() - unit.forward.total());
  to.parameters += unit.parameters;
}

PipelineSplit split_pipeline(const config::Config& config, const MicrobatchCost& passes) {
  const int stages = static_cast<int>(config.parallel.pipeline);
  const auto split = model::pipeline_chunks(config, stages);
  PipelineSplit result{std::vector<StageWork>(split.size()),
                       std::vector<StageWork>(static_cast<size_t>(stages))};
  for (size_t chunk = 0; chunk < split.size(); ++chunk) {
    StageWork& work = result.chunks[chunk];
    const auto [first, count] = split[chunk];
    for (int layer = first; layer < first + count; ++layer) {
      add(work, passes.layer(layer));
      work.of_layers += passes.layer(layer).parameters;
    }
    work.layers = count;
    if (chunk == 0) add(work, passes.embedding);
    if (chunk + 1 == split.size()) add(work, passes.output_layer);
    StageWork& stage = result.stages[chunk % static_cast<size_t>(stages)];
    stage.forward += work.forward, stage.backward += work.backward, stage.wgrad += work.wgrad;
    stage.quantization += work.quantization, stage.parameters += work.parameters;
    stage.of_layers += work.of_layers, stage.layers += work.layers;
  }
  // Tied embeddings have a copy on the last stage.
  if (config.model.tie_word_embeddings && stages > 1)
    result.stages.back().parameters += passes.embedding.parameters;
  return result;
}

/// The ranks that sum a group's gradients and shard its state, as many as in parallel::Groups::gradient_ranks().
int ranks_of(const parallel::ProcessGrid& grid, GradientGroup group) {
  const int stage = grid.world / grid[Axis::pipeline];
  if (group == GradientGroup::expert) return stage / grid.experts;
  return group == GradientGroup::stage ? stage : stage / grid[Axis::tensor];
}

GroupPlacement group_place(const Cluster& cluster, const parallel::ProcessGrid& grid, GradientGroup group) {
  const int stride = group == GradientGroup::expert  ? grid.experts
                     : group == GradientGroup::stage ? 1
                                                     : grid[Axis::tensor];
  return place_of(cluster, ranks_of(grid, group), stride);
}

/// Parameters whose master weights and moments a rank has.
double sharded_parameters(const GroupCounts& counts, const parallel::ProcessGrid& grid) {
  double parameters = 0;
  for (const GradientGroup group : kGradientGroups)
    parameters += static_cast<double>(counts[static_cast<size_t>(group)].trained) / ranks_of(grid, group);
  return parameters;
}

/// Communication of one gradient group of one stage.
class GroupCommunication {
 public:
  GroupCommunication(const config::Config& config, const Cluster& cluster, const parallel::ProcessGrid& grid,
                     const StageWork& stage, GradientGroup group)
      : config_(config),
        gpu_(cluster.gpu),
        place_(group_place(cluster, grid, group)),
        all_(stage.parameters[static_cast<size_t>(group)]),
        layers_(stage.of_layers[static_cast<size_t>(group)]),
        buckets_(std::max(
            1.0, static_cast<double>(all_.all) /
                     std::max(static_cast<double>(config.parallel.bucket_size),
                              static_cast<double>(layers_.all) / static_cast<double>(stage.layers)))) {}

  /// Seconds, and how many of them passes can hide: all but the last bucket's.
  struct Time {
    double seconds = 0, hideable = 0;
    Time& operator+=(const Time& other) {
      seconds += other.seconds, hideable += other.hideable;
      return *this;
    }
  };

  Time gather_layers() const { return gather(layers_.all, layers_.fp8); }
  Time reduce_layers() const { return reduce(layers_.trained); }
  /// Once per step: what is not communicated in every pass.
  Time reduce_once() const {
    return reduce(config_.parallel.shard == config::Shard::optimizer ? all_.trained : trained_ends());
  }
  Time gather_once() const {
    const bool sharded = config_.parallel.shard == config::Shard::parameters;
    const bool in_values = sharded || all_.trained < all_.all;  // adapters are not quantized
    return gather(sharded ? trained_ends() : all_.trained, in_values ? 0 : all_.fp8);
  }
  /// Seconds in which reduced gradients are added to this rank's sums.
  double sums() const {
    return place_.ranks == 1 ? 0
                             : 3.0 * grad_bytes(layers_.trained) / place_.ranks / (gpu_.copy * gpu_.others);
  }

 private:
  int64_t trained_ends() const { return all_.trained - layers_.trained; }
  double grad_bytes(int64_t parameters) const {
    return static_cast<double>(parameters) *
           (config_.optimizer.main_grad_dtype == config::GradDType::fp32 ? 4.0 : 2.0);
  }
  Time communicate(const char* name, double bytes) const {
    if (bytes == 0) return {};
    const double seconds = buckets_ * communication_seconds(name, bytes / buckets_, place_, gpu_);
    return {seconds, seconds * (1.0 - 1.0 / buckets_)};
  }
  Time reduce(int64_t parameters) const { return communicate("reduce_scatter", grad_bytes(parameters)); }
  Time gather(int64_t parameters, int64_t in_fp8) const {
    const double bytes = config_.precision.dtype == config::ComputeDType::fp32 ? 4.0 : 2.0;
    return communicate("all_gather",
                       bytes * static_cast<double>(parameters - in_fp8) + static_cast<double>(in_fp8));
  }

  const config::Config& config_;
  const Gpu& gpu_;
  GroupPlacement place_;
  ParameterCounts all_, layers_;
  double buckets_;
};

/// Communication of gradients and weights of one stage.
class DataCommunication {
 public:
  DataCommunication(const config::Config& config, const parallel::ProcessGrid& grid, const Cluster& cluster,
                    const StageWork& stage)
      : shard_(config.parallel.shard), gpu_(cluster.gpu), stage_(stage) {
    for (const GradientGroup group : kGradientGroups)
      groups_.emplace_back(config, cluster, grid, stage, group);
  }

  /// Seconds that this communication adds to each pass of each microbatch.
  double every_forward() const {
    if (shard_ != config::Shard::parameters) return 0;
    return exposed(&GroupCommunication::gather_layers, stage_.forward.total());
  }
  double every_backward() const {
    if (shard_ == config::Shard::optimizer) return 0;
    const double backward = stage_.backward.total() + stage_.wgrad.total();
    double seconds = exposed(&GroupCommunication::reduce_layers, backward);
    for (const GroupCommunication& group : groups_) seconds += group.sums();
    if (shard_ == config::Shard::parameters) seconds += exposed(&GroupCommunication::gather_layers, backward);
    return seconds;
  }
  /// Seconds per step.
  double once() const {
    return exposed(&GroupCommunication::reduce_once, stage_.backward.total() + stage_.wgrad.total()) +
           exposed(&GroupCommunication::gather_once, stage_.forward.total());
  }

 private:
  /// The groups communicate one after the other.
  double exposed(GroupCommunication::Time (GroupCommunication::*time)() const, double compute) const {
    GroupCommunication::Time all;
    for (const GroupCommunication& group : groups_) all += (group.*time)();
    const double hidden = std::min(all.hideable, compute);
    return all.seconds - hidden + gpu_.overlap_cost * hidden;
  }

  config::Shard shard_;
  const Gpu& gpu_;
  const StageWork& stage_;
  std::vector<GroupCommunication> groups_;
};

/// Time to send a microbatch's activations to the next stage, over the slowest link.
parallel::Costs communication_costs(const config::Config& config, const parallel::ProcessGrid& grid,
                                    const Cluster& cluster) {
  const double tokens = static_cast<double>(config.training.micro_batch_size * config.model.seq_length) /
                        grid[Axis::context] / (config.parallel.sequence ? grid[Axis::tensor] : 1);
  const double bytes = tokens * static_cast<double>(config.model.hidden_size) *
                       (config.precision.dtype == config::ComputeDType::fp32 ? 4.0 : 2.0);
  const bool one_host = cluster.gpus <= cluster.per_host;
  return {.communication =
              communication_seconds("send", bytes, {.ranks = 2, .per_host = one_host ? 2 : 1}, cluster.gpu),
          .buffers = 2,
          .waits_for_receiver = true};
}

/// Seconds of all microbatches' passes on the stage with the most work.
double slowest_stage_seconds(const parallel::ScheduleShape& shape, const PipelineSplit& split,
                             const std::vector<DataCommunication>& data, const parallel::Costs&, double) {
  double largest = 0;
  for (size_t i = 0; i < data.size(); ++i) {
    const StageWork& stage = split.stages[i];
    largest = std::max(largest, stage.forward.total() + stage.backward.total() + stage.wgrad.total() +
                                    data[i].every_forward() + data[i].every_backward());
  }
  return shape.microbatches * largest;
}

/// Seconds from the first pass to the last one.
double pipeline_seconds(const parallel::ScheduleShape& shape, const PipelineSplit& split,
                        const std::vector<DataCommunication>& data, parallel::Costs costs,
                        double message_cost) {
  if (shape.stages == 1) return slowest_stage_seconds(shape, split, data, costs, message_cost);
  for (size_t chunk = 0; chunk < split.chunks.size(); ++chunk) {
    const StageWork& work = split.chunks[chunk];
    const DataCommunication& communication = data[chunk % data.size()];
    const int neighbors = (chunk > 0 ? 1 : 0) + (chunk + 1 < split.chunks.size() ? 1 : 0);
    const double messages = neighbors * message_cost * costs.communication;
    costs.per_chunk.push_back(
        {.forward = work.forward.total() + messages + communication.every_forward() / shape.chunks,
         .backward = work.backward.total() + work.wgrad.total() + messages +
                     communication.every_backward() / shape.chunks,
         .wgrad = work.wgrad.total()});
  }
  return parallel::simulate(parallel::make_schedule(shape), shape, costs).makespan;
}

/// Seconds of a stage's update. With offload the host link may take longer, in both directions at once; transfers of
/// what the slots hold, at most a quarter of the state (optim/optimizer.cpp), overlap with the passes.
double update_seconds(const UpdateWork& update, const StageWork& stage, const parallel::ProcessGrid& grid) {
  const double parameters = sharded_parameters(stage.parameters, grid);
  const double moved = update.host_bytes * parameters;
  const double hidden = std::min(moved / 4, static_cast<double>(optim::kOffloadBufferBytes));
  return std::max(update.per_parameter * parameters, (moved - hidden) / train::kHostLink) +
         update.per_layer * static_cast<double>(stage.layers);
}

}  // namespace

const MicrobatchCost& StepModel::passes(const config::Config& config) {
  const config::ParallelConfig& layout = config.parallel;
  const PassesKey key{layout.tensor,
                      layout.context,
                      layout.expert,
                      layout.sequence,
                      layout.transport,
                      layout.tensor_overlap,
                      config.training.micro_batch_size,
                      config.training.recompute,
                      config::fp8_kept_weights(config),
                      puts_off(config)};
  const auto found = passes_.find(key);
  if (found != passes_.end()) return found->second;
  return passes_.emplace(key, trace_microbatch(config, cluster_, puts_off(config))).first->second;
}

const UpdateWork& StepModel::update(const config::Config& config, int data) {
  const UpdateKey key{config.parallel.tensor, config.parallel.context, config.parallel.expert,
                      config::fp8_kept_weights(config), data};
  const auto found = updates_.find(key);
  if (found != updates_.end()) return found->second;
  return updates_.emplace(key, trace_update(config, cluster_, data)).first->second;
}

template <class Seconds>
StepTime StepModel::parts(const config::Config& config, const Seconds& seconds) {
  const parallel::ProcessGrid grid = train::grid_of(config.parallel, cluster_.gpus);
  const parallel::ScheduleShape shape = train::schedule_shape(config.training, config.parallel, grid);
  const PipelineSplit split = split_pipeline(config, passes(config));
  const UpdateWork& updates = update(config, grid[Axis::data]);
  StepTime step;
  std::vector<DataCommunication> data;
  double quantization = 0, once = 0;
  for (const StageWork& stage : split.stages) {
    const DataCommunication& communication = data.emplace_back(config, grid, cluster_, stage);
    Work all = stage.forward;
    all += stage.backward;
    all += stage.wgrad;
    const double mean = static_cast<double>(shape.microbatches) / shape.stages;
    step.compute += mean * all.compute;
    step.communication += mean * all.communication;
    step.data += mean * (communication.every_forward() + communication.every_backward());
    quantization += stage.quantization;  // one stage after the other, before their first passes
    once = std::max(once, communication.once());
    step.update = std::max(step.update, update_seconds(updates, stage, grid));
  }
  const double whole =
      seconds(shape, split, data, communication_costs(config, grid, cluster_), cluster_.gpu.message_cost);
  step.pipeline = whole - step.compute - step.communication - step.data;
  step.data += once;
  step.update += quantization;
  return step;
}

StepTime StepModel::predict(const config::Config& config) {
  return parts(config, pipeline_seconds);
}

double StepModel::min_seconds(const config::Config& config) {
  return parts(config, slowest_stage_seconds).total();
}

double StepModel::min_bytes(const config::Config& config) {
  const parallel::ProcessGrid grid = train::grid_of(config.parallel, cluster_.gpus);
  const parallel::ScheduleShape shape = train::schedule_shape(config.training, config.parallel, grid);
  const config::OptimizerConfig& optimizer = config.optimizer;
  const MicrobatchCost& all = passes(config);
  const PipelineSplit parts = split_pipeline(config, all);
  const double moments =
      bytes_of(optimizer.exp_avg_dtype) +
      (optimizer.name == config::OptimizerName::muon ? 0.0 : bytes_of(optimizer.exp_avg_sq_dtype));
  const double mains = optimizer.offload == config::Offload::state ? 0.0 : 2.0;
  const double sharded = mains + (optimizer.offload == config::Offload::none ? moments : 0.0);
  const double grad = optimizer.main_grad_dtype == config::GradDType::fp32 ? 4.0 : 2.0;
  const auto state_of = [&](const GroupCounts& counts) {
    const double all = static_cast<double>(counts.all()), trained = static_cast<double>(counts.trained()),
                 shard = sharded_parameters(counts, grid);
    const bool shards_values = config.parallel.shard == config::Shard::parameters,
               shards_grads = config.parallel.shard != config::Shard::optimizer;
    return (shards_values ? 0.0 : all) + grad * (shards_grads ? shard : trained) + sharded * shard;
  };
  // Microbatches in flight on the first stage: at most one per stage.
  const double in_flight = std::min(shape.microbatches, shape.stages);
  const auto bytes_of_stage = [&](size_t stage, double deferred_wgrad) {
    const StageWork& part = parts.stages[stage];
    return state_of(part.parameters) + static_cast<double>(part.layers) *
                                           (in_flight * static_cast<double>(all.activation_bytes) +
                                            deferred_wgrad * static_cast<double>(all.deferred_wgrad_bytes));
  };
  if (!puts_off(config)) return bytes_of_stage(0, 0);
  // zero_bubble: later stages have more chunks with deferred weight gradients, so all stages are compared.
  double largest = 0;
  for (int stage = 0; stage < shape.stages; ++stage) {
    const double waiting = std::min(shape.microbatches * shape.chunks, stage + 1);
    largest = std::max(largest, bytes_of_stage(static_cast<size_t>(stage), waiting / shape.chunks));
  }
  return largest;
}

}  // namespace te::planner
