#include "planner/step_time.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "model/pipeline_pieces.h"
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
  double casts = 0;
  int64_t parameters = 0;
  int64_t layer_parameters = 0;
  int64_t fp8_parameters = 0;
  int64_t trained_parameters = 0, trained_layer_parameters = 0;
  int64_t layers = 0;
};

/// The pieces of the pipeline in model order, and the stages made of them.
struct Cut {
  std::vector<StageWork> pieces, stages;
};

void add(StageWork& to, const LayerCost& unit) {
  to.forward += unit.forward;
  to.backward += unit.backward;
  to.wgrad += unit.wgrad;
  to.casts += std::max(0.0, unit.first_forward.total() - unit.forward.total());
  to.parameters += unit.parameters;
  to.fp8_parameters += unit.fp8_parameters;
  to.trained_parameters += unit.trained_parameters;
}

Cut cut(const config::Config& config, const MicrobatchCost& passes) {
  const int stages = static_cast<int>(config.parallel.pipeline);
  const auto split = model::pipeline_pieces(config, stages);
  Cut result{std::vector<StageWork>(split.size()), std::vector<StageWork>(static_cast<size_t>(stages))};
  for (size_t piece = 0; piece < split.size(); ++piece) {
    StageWork& work = result.pieces[piece];
    const auto [first, count] = split[piece];
    for (int layer = first; layer < first + count; ++layer) {
      add(work, passes.layer(layer));
      work.layer_parameters += passes.layer(layer).parameters;
      work.trained_layer_parameters += passes.layer(layer).trained_parameters;
    }
    work.layers = count;
    if (piece == 0) add(work, passes.embedding);
    if (piece + 1 == split.size()) add(work, passes.head);
    StageWork& stage = result.stages[piece % static_cast<size_t>(stages)];
    stage.forward += work.forward, stage.backward += work.backward, stage.wgrad += work.wgrad;
    stage.casts += work.casts, stage.parameters += work.parameters;
    stage.layer_parameters += work.layer_parameters, stage.layers += work.layers;
    stage.fp8_parameters += work.fp8_parameters;
    stage.trained_parameters += work.trained_parameters;
    stage.trained_layer_parameters += work.trained_layer_parameters;
  }
  // Tied embeddings have a copy on the last stage.
  if (config.model.tie_word_embeddings && stages > 1) {
    result.stages.back().parameters += passes.embedding.parameters;
    result.stages.back().trained_parameters += passes.embedding.trained_parameters;
  }
  return result;
}

/// The ranks that sum the gradients of most parameters: tensor-parallel ranks hold full weights of experts.
int gradient_ranks(const config::Config& config, const parallel::ProcessGrid& grid) {
  return grid[Axis::context] * grid[Axis::data] * (config.model.num_moe_experts > 0 ? grid[Axis::tensor] : 1);
}

/// Communication of the data-parallel ranks of one stage.
class DataMessages {
 public:
  DataMessages(const config::Config& config, const parallel::ProcessGrid& grid, const Cluster& cluster,
               const StageWork& stage)
      : config_(config),
        gpu_(cluster.gpu),
        place_(place_of(cluster, gradient_ranks(config, grid),
                        config.model.num_moe_experts > 0 ? 1 : grid[Axis::tensor])),
        stage_(stage),
        buckets_(std::max<double>(1.0, static_cast<double>(stage.parameters) /
                                           std::max(static_cast<double>(config.parallel.bucket_size),
                                                    static_cast<double>(stage.layer_parameters) /
                                                        static_cast<double>(stage.layers)))) {}

  /// Seconds that this communication adds to each pass of each microbatch.
  double every_forward() const {
    if (config_.parallel.shard != config::Shard::parameters || place_.ranks == 1) return 0;
    return exposed(gather(stage_.layer_parameters, in_fp8()), stage_.forward.total());
  }
  double every_backward() const {
    if (config_.parallel.shard == config::Shard::optimizer || place_.ranks == 1) return 0;
    const double backward = stage_.backward.total() + stage_.wgrad.total();
    // Reduced gradients are added to this rank's sums.
    const int64_t trained = stage_.trained_layer_parameters;
    const double sums = 3.0 * grad_bytes(trained) / place_.ranks / (gpu_.copy * gpu_.others);
    double seconds = sums + exposed(reduce(trained), backward);
    if (config_.parallel.shard == config::Shard::parameters)
      seconds += exposed(gather(stage_.layer_parameters, in_fp8()), backward);
    return seconds;
  }
  /// Seconds per step.
  double once() const {
    if (place_.ranks == 1) return 0;
    const config::Shard shard = config_.parallel.shard;
    const int64_t trained = stage_.trained_parameters, ends = trained - stage_.trained_layer_parameters;
    const int64_t reduced = shard == config::Shard::optimizer ? trained : ends;
    const bool sharded = shard == config::Shard::parameters;
    const int64_t gathered = sharded ? ends : trained;
    const bool in_values = sharded || trained < stage_.parameters;  // adapters are not quantized
    return exposed(reduce(reduced), stage_.backward.total() + stage_.wgrad.total()) +
           exposed(gather(gathered, in_values ? 0 : in_fp8()), stage_.forward.total());
  }

 private:
  int64_t in_fp8() const { return config::gathers_fp8_weights(config_) ? stage_.fp8_parameters : 0; }
  double grad_bytes(int64_t parameters) const {
    return static_cast<double>(parameters) *
           (config_.optimizer.main_grad_dtype == config::GradDType::fp32 ? 4.0 : 2.0);
  }
  double message(const char* name, double bytes) const {
    return bytes == 0 ? 0 : buckets_ * message_seconds(name, bytes / buckets_, place_, gpu_);
  }
  double reduce(int64_t parameters) const { return message("reduce_scatter", grad_bytes(parameters)); }
  double gather(int64_t parameters, int64_t in_fp8 = 0) const {
    const double bytes = config_.precision.dtype == config::ComputeDType::fp32 ? 4.0 : 2.0;
    return message("all_gather",
                   bytes * static_cast<double>(parameters - in_fp8) + static_cast<double>(in_fp8));
  }
  double exposed(double seconds, double compute) const {
    const double hidden = std::min(seconds * (1.0 - 1.0 / buckets_), compute);
    return seconds - hidden + gpu_.overlap_cost * hidden;
  }

  const config::Config& config_;
  const Gpu& gpu_;
  GroupPlacement place_;
  const StageWork& stage_;
  double buckets_;
};

/// Time to send a microbatch's activations to the next stage, over the slowest link.
parallel::Costs message_costs(const config::Config& config, const parallel::ProcessGrid& grid,
                              const Cluster& cluster) {
  const double tokens = static_cast<double>(config.training.micro_batch_size * config.model.seq_length) /
                        grid[Axis::context] / (config.parallel.sequence ? grid[Axis::tensor] : 1);
  const double bytes = tokens * static_cast<double>(config.model.hidden_size) *
                       (config.precision.dtype == config::ComputeDType::fp32 ? 4.0 : 2.0);
  const bool one_host = cluster.gpus <= cluster.per_host;
  return {.communication =
              message_seconds("send", bytes, {.ranks = 2, .per_host = one_host ? 2 : 1}, cluster.gpu),
          .buffers = 2,
          .waits_for_receiver = true};
}

/// Seconds of all microbatches' passes on the stage with the most work.
double slowest_stage_seconds(const parallel::ScheduleShape& shape, const Cut& cut,
                             const std::vector<DataMessages>& data, const parallel::Costs&) {
  double most = 0;
  for (size_t i = 0; i < data.size(); ++i) {
    const StageWork& stage = cut.stages[i];
    most = std::max(most, stage.forward.total() + stage.backward.total() + stage.wgrad.total() +
                              data[i].every_forward() + data[i].every_backward());
  }
  return shape.microbatches * most;
}

/// Seconds from the first pass to the last one.
double pipeline_seconds(const parallel::ScheduleShape& shape, const Cut& cut,
                        const std::vector<DataMessages>& data, parallel::Costs costs) {
  if (shape.stages == 1) return slowest_stage_seconds(shape, cut, data, costs);
  for (size_t piece = 0; piece < cut.pieces.size(); ++piece) {
    const StageWork& work = cut.pieces[piece];
    const DataMessages& messages = data[piece % data.size()];
    costs.pieces.push_back(
        {.forward = work.forward.total() + messages.every_forward() / shape.chunks,
         .backward = work.backward.total() + work.wgrad.total() + messages.every_backward() / shape.chunks,
         .wgrad = work.wgrad.total()});
  }
  return parallel::simulate(parallel::make_schedule(shape), shape, costs).makespan;
}

/// Seconds of a stage's update. With offload the host link may take longer, in both directions at once; transfers of
/// what the slots hold, at most a quarter of the state (optim/optimizer.cpp), overlap with the passes.
double update_seconds(const UpdateWork& update, const StageWork& stage) {
  const auto parameters = static_cast<double>(stage.parameters);
  const double moved = update.host_bytes * parameters;
  const double hidden = std::min(moved / 4, static_cast<double>(optim::kOffloadBufferBytes));
  return std::max(update.per_parameter * parameters, (moved - hidden) / train::kAssumedHostLink) +
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
                      puts_off(config)};
  const auto found = passes_.find(key);
  if (found != passes_.end()) return found->second;
  return passes_.emplace(key, trace_microbatch(config, cluster_, puts_off(config))).first->second;
}

const UpdateWork& StepModel::update(const config::Config& config, int data) {
  const UpdateKey key{config.parallel.tensor, config.parallel.context, config.parallel.expert, data};
  const auto found = updates_.find(key);
  if (found != updates_.end()) return found->second;
  return updates_.emplace(key, trace_update(config, cluster_, data)).first->second;
}

template <class Seconds>
StepTime StepModel::parts(const config::Config& config, const Seconds& seconds) {
  const parallel::ProcessGrid grid = train::grid_of(config.parallel, cluster_.gpus);
  const parallel::ScheduleShape shape = train::schedule_shape(config.training, config.parallel, grid);
  const Cut cuts = cut(config, passes(config));
  const UpdateWork& updates = update(config, grid[Axis::data]);
  StepTime step;
  std::vector<DataMessages> data;
  double casts = 0, once = 0;
  for (const StageWork& stage : cuts.stages) {
    const DataMessages& messages = data.emplace_back(config, grid, cluster_, stage);
    Work all = stage.forward;
    all += stage.backward;
    all += stage.wgrad;
    const double mean = static_cast<double>(shape.microbatches) / shape.stages;
    step.compute += mean * all.compute;
    step.messages += mean * all.messages;
    step.data += mean * (messages.every_forward() + messages.every_backward());
    casts += stage.casts;  // one stage after the other, before their first passes
    once = std::max(once, messages.once());
    step.update = std::max(step.update, update_seconds(updates, stage));
  }
  const double whole = seconds(shape, cuts, data, message_costs(config, grid, cluster_));
  step.pipeline = whole - step.compute - step.messages - step.data;
  step.data += once;
  step.update += casts;
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
  const Cut parts = cut(config, all);
  const double shares = gradient_ranks(config, grid);
  const double values = config.parallel.shard == config::Shard::parameters ? 0.0 : 1.0,
               grads = (config.parallel.shard == config::Shard::optimizer ? 1.0 : 1.0 / shares) *
                       (optimizer.main_grad_dtype == config::GradDType::fp32 ? 4.0 : 2.0);
  const double moments =
      bytes_of(optimizer.exp_avg_dtype) +
      (optimizer.name == config::OptimizerName::muon ? 0.0 : bytes_of(optimizer.exp_avg_sq_dtype));
  const double mains = optimizer.offload == config::Offload::state ? 0.0 : 2.0;
  const double state =
      values + grads + (mains + (optimizer.offload == config::Offload::none ? moments : 0.0)) / shares;
  // Microbatches in flight on the first stage: at most one per stage.
  const double in_flight = std::min(shape.microbatches, shape.stages);
  const auto bytes_of_stage = [&](size_t stage, double deferred_wgrad) {
    const StageWork& part = parts.stages[stage];
    return state * static_cast<double>(part.parameters) +
           static_cast<double>(part.layers) *
               (in_flight * static_cast<double>(all.activation_bytes) +
                deferred_wgrad * static_cast<double>(all.deferred_wgrad_bytes));
  };
  if (!puts_off(config)) return bytes_of_stage(0, 0);
  // zero_bubble: later stages have more chunks with deferred weight gradients, so all stages are compared.
  double most = 0;
  for (int stage = 0; stage < shape.stages; ++stage) {
    const double waiting = std::min(shape.microbatches * shape.chunks, stage + 1);
    most = std::max(most, bytes_of_stage(static_cast<size_t>(stage), waiting / shape.chunks));
  }
  return most;
}

}  // namespace te::planner
