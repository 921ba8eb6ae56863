#include "planner/cost_trace.h"

#include <algorithm>
#include <functional>
#include <new>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/memory_plan.h"
#include "core/profile.h"
#include "kernels/gemm/gemm_activation.h"
#include "model/model_stage.h"
#include "optim/optimizer.h"
#include "parallel/groups.h"
#include "planner/op_time.h"
#include "train/execution.h"

namespace te::planner {
namespace {

/// Passes every operation on to a function.
class CostTrace final : public OpObserver {
 public:
  explicit CostTrace(std::function<void(const OpCall&)> listener) : listener_(std::move(listener)) {}
  void begin(const Context&, OpCall call) override { listener_(call); }
  void end(const Context&) override {}

 private:
  std::function<void(const OpCall&)> listener_;
};

/// Whether no rule of the config distinguishes layers, except that some have experts.
bool layers_are_alike(const config::Config& config) {
  return config.precision.first_layers_bf16 == 0 && config.precision.last_layers_bf16 == 0 &&
         config.precision.overrides.empty() &&
         !(config.model.windowed() && !config.model.window_pattern.empty());
}

constexpr int64_t kLayersThatStandForAll = 3;  ///< the middle one has neighbors on both sides
constexpr int64_t kDenseLayersBeforeExperts = 2;

/// The whole model on one stage, with as few layers as are needed for the cost per layer, and one microbatch per rank.
config::Config stage_config(config::Config config, int data) {
  if (layers_are_alike(config)) {
    config::ModelConfig& model = config.model;
    model.first_k_dense = std::min(model.first_k_dense, kDenseLayersBeforeExperts);
    model.num_layers =
        std::min(model.num_layers, model.first_k_dense + kLayersThatStandForAll * model.moe_layer_freq);
  }
  config.parallel.pipeline = config.parallel.virtual_stages = 1;
  config.parallel.schedule = config::PipelineSchedule::one_f_one_b;
  config.parallel.pipeline_split = config::ParallelConfig{}.pipeline_split;
  config.parallel.shard = config::Shard::optimizer;
  config.training.global_batch_size = config.training.micro_batch_size * data;
  return config;
}

/// The costs of the given model's layers from those that stand for them: one if all are alike.
std::vector<LayerCost> all_layers(const std::vector<LayerCost>& traced, const config::ModelConfig& model,
                                  const config::ModelConfig& given) {
  const bool mixed = given.num_moe_experts > 0 && (given.first_k_dense > 0 || given.moe_layer_freq > 1);
  std::vector<LayerCost> all;
  for (int64_t layer = 0; layer < (mixed ? given.num_layers : 1); ++layer) {
    std::vector<size_t> alike;
    for (size_t i = 0; i < traced.size(); ++i)
      if (model.has_experts(static_cast<int64_t>(i)) == given.has_experts(layer)) alike.push_back(i);
    all.push_back(traced[alike[alike.size() / 2]]);
  }
  return all;
}

/// Data-parallel ranks of the layout's smallest job.
int min_data_ranks(const config::ParallelConfig& layout) {
  const int64_t microbatch = layout.tensor * layout.context;
  return static_cast<int>(std::lcm(microbatch, layout.expert) / microbatch);
}

/// For passes, which are the same wherever the optimizer's state is.
config::Config passes_config(const config::Config& given) {
  config::Config config = stage_config(given, min_data_ranks(given.parallel));
  config.optimizer.offload = config::Offload::none;
  // Some operations are charged for all planned rows, of which balanced experts use no more than factor 1 plans.
  config.parallel.moe_dispatch_factor = std::min(config.parallel.moe_dispatch_factor, 1.0);
  return config;
}

parallel::Groups planned_groups(const config::Config& config, int data) {
  const int tensor = static_cast<int>(config.parallel.tensor),
            context = static_cast<int>(config.parallel.context);
  return parallel::Groups::dry_run(parallel::ProcessGrid::of(tensor * context * data, tensor, context, 1,
                                                             static_cast<int>(config.parallel.expert)),
                                   0, train::connect_options(config));
}

/// Placement of the groups whose ranks communicate in passes.
class GroupTopology {
 public:
  GroupTopology(const config::ParallelConfig& layout, const Cluster& cluster)
      : tensor_(place_of(cluster, static_cast<int>(layout.tensor), 1)),
        context_(place_of(cluster, static_cast<int>(layout.context), static_cast<int>(layout.tensor))),
        expert_(place_of(cluster, static_cast<int>(layout.expert), 1)),
        microbatch_(place_of(cluster, static_cast<int>(layout.tensor * layout.context), 1)) {}

  const GroupPlacement& of(std::string_view group) const {
    return group == "tensor"    ? tensor_
           : group == "context" ? context_
           : group == "expert"  ? expert_
                                : microbatch_;
  }

 private:
  GroupPlacement tensor_, context_, expert_, microbatch_;
};

/// Cost of tensor-parallel communication with copy engines, overlapped with chunked GEMMs; empty for other operations.
std::optional<Work> copied(const OpCall& call, const config::ParallelConfig& layout,
                           const GroupPlacement& place, const Gpu& gpu) {
  const std::string_view name = call.name;
  const bool reduces = name == "reduce_scatter", carried = reduces || name == "all_gather";
  if (!layout.tensor_copies() || layout.tensor_overlap == 1 || call.group != "tensor" || !carried)
    return std::nullopt;
  const double sums = call.cost.bytes * (place.ranks + 1) / place.ranks / (gpu.copy * gpu.others);
  const double hidden = layout.tensor_overlap < place.ranks ? gpu.copies_hidden_in_fewer_chunks
                        : place.ranks == 2                  ? gpu.copies_hidden_by_two
                                                            : gpu.copies_hidden_by_more;
  return Work{.compute = reduces ? gpu.launch + sums : 0,
              .communication = (1 - hidden) * communication_seconds(name, call.cost.bytes, place, gpu)};
}

Work work_of(const OpCall& call, const config::ParallelConfig& layout, const GroupTopology& topology,
             const Gpu& gpu) {
  if (is_communication(call)) {
    const GroupPlacement& place = topology.of(call.group);
    if (const std::optional<Work> work = copied(call, layout, place, gpu)) return *work;
    return {.communication = communication_seconds(call.name, call.cost.bytes, place, gpu)};
  }
  Work work{.compute = op_seconds(call, gpu)};
  if (all_reduces_amax(call))
    work.communication = communication_seconds("all_reduce", 0, topology.of("microbatch"), gpu);
  return work;
}

/// Assigns operations to layers, by the weights that the pass is about to read.
class CostsByLayer {
 public:
  /// `gathers_fp8`: weights with one scale are gathered in FP8; a base that is held in FP8 only always is.
  CostsByLayer(const parameters::ParameterStore& store, int64_t layers, bool gathers_fp8)
      : layers_(static_cast<size_t>(layers)) {
    for (const parameters::Parameter& parameter : store.parameters()) {
      LayerCost& unit = unit_of(parameter.id);
      const int64_t count = parameter.shape.numel();
      const bool fp8 = parameter.dropped ? !parameter.two_codes : gathers_fp8 && parameter.quantized;
      unit.parameters[static_cast<size_t>(parameter.group)] +=
          {.all = count, .fp8 = fp8 ? count : 0, .trained = parameter.trainable ? count : 0};
      starts_.emplace_back(parameter.offset, &unit);
    }
  }

  void enter(int64_t offset) {
    for (const auto& [begin, unit] : starts_)
      if (begin == offset) current_ = unit;
  }
  /// The embedding's backward pass follows that of the first layer and reads no weights.
  LayerCost& of(const OpCall& call) {
    return std::string_view(call.name).starts_with("embedding") || current_ == nullptr ? embedding_
                                                                                       : *current_;
  }

  LayerCost embedding_, output_layer_;
  std::vector<LayerCost> layers_;

 private:
  LayerCost& unit_of(const ParameterId& id) {
    if (id.layer != kNoLayer) return layers_[static_cast<size_t>(id.layer)];
    return id.role == ParameterRole::word_embeddings || id.role == ParameterRole::position_embeddings
               ? embedding_
               : output_layer_;
  }
  std::vector<std::pair<int64_t, LayerCost*>> starts_;
  LayerCost* current_ = nullptr;
};

/// Inputs of traced passes, which are never read.
struct Inputs {
  Inputs(MemoryPlan& plan, const model::Dimensions& dims) {
    plan.add(tokens, "tokens", MemoryKind::data, DType::i32, {dims.tokens});
    plan.add(targets, "targets", MemoryKind::data, DType::i32, {dims.tokens});
    plan.add(document_start, "document_start", MemoryKind::data, DType::i32, {dims.batch * dims.seq});
    plan.add(loss_sum, "loss_sum", MemoryKind::data, DType::f32, {1});
  }
  PlannedTensor tokens, targets, document_start, loss_sum;
};

/// One stage with memory for the passes of a microbatch, which a context only traces.
class TracedStage {
 public:
  TracedStage(const config::Config& config, std::function<void(const OpCall&)> listener, bool deferred_wgrad)
      : trace_(std::move(listener)),
        context_(Context::trace(trace_, train::execution_options(config))),
        deferred_wgrad_(deferred_wgrad),
        groups_(planned_groups(config, min_data_ranks(config.parallel))),
        stage_(config, groups_) {
    stage_.plan(plan_, context_, {.activations = {1}, .wgrad = deferred_wgrad ? 1 : 0});
    inputs_.emplace(plan_, stage_.dims());
    memory_ = plan_.allocate(context_);
    stage_.parameters().bind(context_);
    stage_.bind_routing();
    stage_.weights_changed();
    for (const parameters::Parameter& parameter : stage_.parameters().parameters())
      if (parameter.quantize_written) parameter.quantize_written(context_);  // once per run
    if (config.data.document_mask) pass_.document_start = inputs_->document_start;
  }

  model::ModelStage& stage() { return stage_; }
  const MemoryPlan& plan() const { return plan_; }
  void forward() {
    stage_.forward(context_, place(), inputs_->tokens, inputs_->targets, 1.0f, inputs_->loss_sum, {}, pass_);
  }
  void backward() { stage_.backward(context_, place(), inputs_->tokens, pass_); }
  void wgrad() {
    if (deferred_wgrad_) stage_.wgrad(context_, place(), pass_);
  }
  /// Memory for activations of a stage that keeps `wgrads` microbatches until their deferred wgrad.
  int64_t activation_bytes(const config::Config& config, int wgrads) const {
    model::ModelStage other(config, groups_);
    MemoryPlan planned;
    other.plan(planned, context_, {.activations = {1}, .wgrad = wgrads});
    return planned.bytes(MemoryKind::activations);
  }

 private:
  model::MicrobatchSlot place() const { return {0, 0, deferred_wgrad_ ? 0 : -1}; }
  CostTrace trace_;
  const Context context_;
  const bool deferred_wgrad_;
  const parallel::Groups groups_;
  model::ModelStage stage_;
  MemoryPlan plan_;
  std::optional<Inputs> inputs_;
  DeviceBuffer memory_;
  model::Pass pass_;
};

/// What computes a call; empty if it is no GEMM.
std::optional<train::GemmUse> gemm_of(const OpCall& call, const Context& context) {
  const auto use = [&](const auto& args, DType dtype) -> train::GemmUse {
    const size_t space = call.label.find(' ');
    const bool tf32 = dtype == DType::f32 && context.is_cuda() && context.options().tf32;
    return {.precision = is_fp8(dtype)          ? "FP8"
                         : dtype == DType::bf16 ? "BF16"
                         : dtype == DType::f16  ? "FP16"
                         : tf32                 ? "TF32"
                                                : "FP32",
            .pass = call.label.substr(call.label.rfind(' ') + 1),
            .kernels = kernels::gemm_kernels(context, args),
            .linears = {call.label.substr(0, space)}};
  };
  if (const auto* args = std::any_cast<kernels::Gemm>(&call.args)) return use(*args, args->a.dtype());
  if (const auto* args = std::any_cast<kernels::GemmActivationForward>(&call.args))
    return use(*args, args->a.dtype());
  if (const auto* args = std::any_cast<kernels::GemmActivationBackward>(&call.args))
    return use(*args, args->a.dtype);
  return std::nullopt;
}

}  // namespace

Work& Work::operator+=(const Work& other) {
  compute += other.compute;
  communication += other.communication;
  return *this;
}

ParameterCounts& ParameterCounts::operator+=(const ParameterCounts& other) {
  all += other.all, fp8 += other.fp8, trained += other.trained;
  return *this;
}

int64_t GroupCounts::all() const {
  int64_t sum = 0;
  for (const ParameterCounts& counts : *this) sum += counts.all;
  return sum;
}

int64_t GroupCounts::trained() const {
  int64_t sum = 0;
  for (const ParameterCounts& counts : *this) sum += counts.trained;
  return sum;
}

GroupCounts& GroupCounts::operator+=(const GroupCounts& other) {
  for (size_t group = 0; group < size(); ++group) (*this)[group] += other[group];
  return *this;
}

MicrobatchCost trace_microbatch(const config::Config& given, const Cluster& cluster, bool deferred_wgrad) {
  const config::Config config = passes_config(given);
  const GroupTopology topology(config.parallel, cluster);
  std::optional<CostsByLayer> units;
  Work LayerCost::*part = nullptr;
  TracedStage traced(
      config,
      [&](const OpCall& call) {
        if (part != nullptr) units->of(call).*part += work_of(call, config.parallel, topology, cluster.gpu);
      },
      deferred_wgrad);
  model::ModelStage& stage = traced.stage();
  units.emplace(stage.parameters(), config.model.num_layers, config::gathers_fp8_weights(config));
  stage.set_hooks(
      {.before_parameters = [&](const Context&, int64_t begin, int64_t, int) { units->enter(begin); },
       .before_wgrads = [&](const Context&, int64_t begin, int64_t) { units->enter(begin); },
       .gradients_ready = {}});
  const auto run = [&](Work LayerCost::*forward, Work LayerCost::*backward, Work LayerCost::*wgrad) {
    part = forward;
    traced.forward();
    part = backward;
    traced.backward();
    part = wgrad;
    traced.wgrad();
  };
  run(&LayerCost::first_forward, nullptr, nullptr);
  run(&LayerCost::forward, &LayerCost::backward, &LayerCost::wgrad);

  MicrobatchCost passes{.embedding = units->embedding_,
                        .output_layer = units->output_layer_,
                        .layers = std::move(units->layers_)};
  const int64_t activation_bytes = traced.plan().bytes(MemoryKind::activations);
  passes.activation_bytes = activation_bytes / config.model.num_layers;
  if (deferred_wgrad) {
    passes.deferred_wgrad_bytes =
        (traced.activation_bytes(config, 2) - activation_bytes) / config.model.num_layers;
    passes.activation_bytes -= passes.deferred_wgrad_bytes;
  }
  // The output layer keeps two more tensors of the residual stream's size.
  passes.activation_bytes -= 2 * stage.dims().residual_rows * stage.dims().hidden *
                             static_cast<int64_t>(dtype_size(stage.dims().dtype)) / config.model.num_layers;
  if (layers_are_alike(config)) passes.layers = all_layers(passes.layers, config.model, given.model);
  return passes;
}

std::vector<train::GemmUse> trace_gemms(const config::Config& given, const Context& context) try {
  std::vector<train::GemmUse> uses;
  TracedStage traced(
      passes_config(given),
      [&](const OpCall& call) {
        std::optional<train::GemmUse> use = gemm_of(call, context);
        if (!use) return;
        const auto same = std::find_if(uses.begin(), uses.end(), [&](const train::GemmUse& other) {
          return other.precision == use->precision && other.pass == use->pass &&
                 other.kernels == use->kernels;
        });
        if (same == uses.end()) return uses.push_back(std::move(*use));
        if (std::find(same->linears.begin(), same->linears.end(), use->linears[0]) == same->linears.end())
          same->linears.push_back(use->linears[0]);
      },
      false);
  traced.forward();
  traced.backward();
  return uses;
} catch (const UserError&) {  // of the reservation: a run needs much less address space than its trace
  return {};
} catch (const std::bad_alloc&) {
  return {};
}

UpdateWork trace_update(const config::Config& given, const Cluster& cluster, int data) {
  const config::Config config = stage_config(given, data);
  const GroupTopology topology(config.parallel, cluster);
  const parallel::Groups groups = planned_groups(config, data);
  double muon = 0, others = 0;
  CostTrace trace([&](const OpCall& call) {
    const bool of_muon = call.label.starts_with("muon");
    if (is_communication(call) && call.group != "tensor")
      return;                                       // data-parallel communication is counted elsewhere
    if (call.label.starts_with("offload")) return;  // other CUDA streams, and the host link
    (of_muon ? muon : others) += work_of(call, config.parallel, topology, cluster.gpu).total();
  });
  const Context context = Context::trace(trace, train::execution_options(config));
  model::ModelStage stage(config, groups);
  optim::Optimizer optimizer({.optimizer = config.optimizer,
                              .seed = config.training.seed,
                              .tied_embeddings = config.model.tie_word_embeddings},
                             stage.parameters(), groups);
  MemoryPlan plan;
  stage.plan(plan, context);
  optimizer.plan(plan);
  const HostBuffer host_memory = plan.allocate_host(context);
  const DeviceBuffer memory = plan.allocate(context);

  stage.parameters().bind(context);
  optimizer.gatherer().before_gather([](const Context&) {});  // quantization is a cost of the passes
  muon = others = 0;  // fills and copies up to here are not part of a step
  optimizer.begin_step(context);
  for (parameters::Parameter& parameter : stage.parameters().parameters()) parameter.grad_stale = false;
  optimizer.step(context, 0.0f);
  double parameters = 0;  // that this rank updates
  for (const parameters::Parameter& parameter : stage.parameters().parameters())
    if (parameter.trainable)
      parameters +=
          static_cast<double>(parameter.shape.numel()) / groups.gradient_ranks(parameter.group).size();
  return {.per_parameter = others / parameters,
          .per_layer = muon / static_cast<double>(config.model.num_layers),
          .host_bytes = static_cast<double>(plan.total_host_bytes()) / parameters};
}

}  // namespace te::planner
