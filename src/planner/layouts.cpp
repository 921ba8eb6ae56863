#include "planner/layouts.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "config/validate_device.h"
#include "core/error.h"
#include "core/memory_plan.h"
#include "parallel/schedule/schedule.h"
#include "train/pipeline.h"

namespace te::planner {

using parallel::Axis;

namespace {

using config::Config;
using config::PipelineSchedule;

std::vector<int64_t> divisors(int64_t n) {
  std::vector<int64_t> all;
  for (int64_t d = 1; d <= n; ++d)
    if (n % d == 0) all.push_back(d);
  return all;
}

constexpr int64_t kMaxTokens = 131072;  ///< per microbatch and rank, if it has several samples
constexpr int64_t kMaxVirtualStages = 4;

/// Ways to assign layers to stages.
std::vector<const char*> splits(int64_t stages) {
  if (stages == 1) return {"even"};
  return {"even", "balanced"};
}

/// Schedules of a pipeline with this number of stages, with their virtual stages.
std::vector<std::pair<PipelineSchedule, int64_t>> schedules(int64_t stages) {
  std::vector<std::pair<PipelineSchedule, int64_t>> all{{PipelineSchedule::one_f_one_b, 1}};
  if (stages == 1) return all;
  all.emplace_back(PipelineSchedule::zero_bubble, 1);
  for (int64_t chunks = 2; chunks <= kMaxVirtualStages; ++chunks) {
    all.emplace_back(PipelineSchedule::interleaved, chunks);
    all.emplace_back(PipelineSchedule::zero_bubble, chunks);
  }
  return all;
}

std::vector<config::Shard> shards(int64_t ranks) {
  if (ranks == 1) return {config::Shard::optimizer};
  return {config::Shard::optimizer, config::Shard::gradients, config::Shard::parameters};
}

/// The config's transport, and copy engines for tensor-parallel activations with chunked GEMMs, which are usually
/// faster: either one chunk per rank, of which the first needs no communication, or two chunks, which are larger GEMMs.
std::vector<config::ParallelConfig> transports(const config::ParallelConfig& layout) {
  config::ParallelConfig copying = layout;
  if (copying.transport == config::Transport::nccl) copying.transport = config::Transport::automatic;
  std::vector<config::ParallelConfig> all{layout};
  for (const int64_t token_chunks : {layout.tensor, int64_t{2}}) {
    copying.tensor_overlap = token_chunks;
    const bool there = std::ranges::any_of(all, [&](const config::ParallelConfig& other) {
      return other.tensor_copies() && other.tensor_overlap == token_chunks;
    });
    if (layout.tensor % token_chunks == 0 && token_chunks > 1 && !there) all.push_back(copying);
  }
  return all;
}

/// The most ranks that shard a gradient group's state: with experts, tensor-parallel ranks have full weights, too.
int64_t max_sharing_ranks(const Config& config, const parallel::ProcessGrid& grid) {
  const int64_t tensor = config.model.num_moe_experts > 0 ? grid[Axis::tensor] : 1;
  return tensor * grid[Axis::context] * grid[Axis::data];
}

/// The variant that keeps FP8 weights in both layouts, which `auto` does not: faster, with more memory. Empty where
/// that is not possible.
std::optional<Config> with_kept_weights(const Config& config) {
  if (config.precision.fp8 == config::Fp8Mode::off || config.adapter.on() ||
      config.precision.fp8_keep_weights != config::Fp8KeptWeights::automatic ||
      config.parallel.shard == config::Shard::parameters)
    return std::nullopt;
  Config kept = config;
  kept.precision.fp8_keep_weights = config::Fp8KeptWeights::both;
  return kept;
}

/// Variants that save memory and take more time.
void add_memory_ways(Config way, int64_t sharing_ranks, std::vector<Config>& all) {
  for (const config::Recompute recompute :
       {config::Recompute::none, config::Recompute::selective, config::Recompute::full}) {
    way.training.recompute = recompute;
    for (const config::Shard shard : shards(sharing_ranks)) {
      way.parallel.shard = shard;
      all.push_back(way);
    }
  }
}

/// All variants of a layout of ranks, valid or not.
std::vector<Config> ways(const Config& config, const parallel::ProcessGrid& grid) {
  std::vector<Config> all;
  Config way = config;
  way.parallel.tensor = grid[Axis::tensor];
  way.parallel.context = grid[Axis::context];
  way.parallel.pipeline = grid[Axis::pipeline];
  way.parallel.expert = grid.experts;
  if (grid.experts == 1) way.parallel.moe_dispatch_factor = config::ParallelConfig{}.moe_dispatch_factor;
  way.model.pad_vocabulary_for(grid[Axis::tensor]);
  way.parallel.sequence = grid[Axis::tensor] > 1;
  if (grid[Axis::tensor] == 1) way.parallel.tensor_overlap = 1;
  for (const int64_t batch : divisors(config.training.global_batch_size / grid[Axis::data])) {
    const bool shared = config.training.global_batch_size % (batch * grid[Axis::data]) == 0;
    if (!shared || (batch > 1 && batch * config.model.seq_length / grid[Axis::context] > kMaxTokens))
      continue;
    way.training.micro_batch_size = batch;
    for (const auto& [schedule, chunks] : schedules(grid[Axis::pipeline])) {
      way.parallel.schedule = schedule;
      way.parallel.virtual_stages = chunks;
      for (const char* split : splits(grid[Axis::pipeline])) {
        way.parallel.pipeline_split = split;
        for (const config::ParallelConfig& layout : transports(way.parallel)) {
          Config carried = way;
          carried.parallel = layout;
          add_memory_ways(carried, max_sharing_ranks(config, grid), all);
        }
      }
    }
  }
  return all;
}

/// Empty if the rules accept the config for a GPU, else the reason.
std::string refusal(const Config& config, const Gpu& gpu, const parallel::ProcessGrid& grid) {
  DeviceCaps caps = caps_of(gpu.sm);
  caps.gpu = gpu.title;
  try {
    config::validate(config);
    (void)config::for_device(config, caps);
    parallel::check(train::schedule_shape(config.training, config.parallel, grid));
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

/// The keys of a layout that differ from the given config, as --set options.
std::string settings_of(const Config& config, const Config& given) {
  std::string text;
  for (const config::ChangedKey& key : config::changed_keys(config::to_yaml(given), config)) {
    if (key.path == "model.make_vocab_size_divisible_by") continue;    // derived from parallel.tensor
    const bool quoted = key.now.size() > 1 && key.now.front() == '"';  // all are single words
    text += fmt::format("{}--set {}={}", text.empty() ? "" : " ", key.path,
                        quoted ? key.now.substr(1, key.now.size() - 2) : key.now);
  }
  // With the given schedule this number may be the default, and with another one not.
  const config::ParallelConfig &now = config.parallel, &before = given.parallel;
  if (now.schedule != before.schedule && now.virtual_stages == before.virtual_stages &&
      now.virtual_stages > 1)
    text += fmt::format(" --set parallel.virtual_stages={}", now.virtual_stages);
  return text;
}

class Search {
 public:
  Search(const Config& config, const Cluster& cluster, const PlannedBytes& planned_bytes)
      : config_(config), model_(cluster), planned_bytes_(planned_bytes) {
    result_.capacity_bytes = cluster.gpu.memory_bytes - cluster.gpu.reserved_bytes(cluster.gpus);
  }

  SearchResult run() {
    const Cluster& cluster = model_.cluster();
    for (const int64_t tensor : divisors(cluster.gpus)) {
      // Tensor parallelism stays within a host.
      if (cluster.gpus > cluster.per_host && cluster.per_host % tensor != 0) continue;
      for (const int64_t context : divisors(cluster.gpus / tensor))
        for (const int64_t pipeline : divisors(cluster.gpus / tensor / context))
          for (const int64_t experts : expert_sizes(cluster.gpus / pipeline))
            add_grid(parallel::ProcessGrid::of(cluster.gpus, static_cast<int>(tensor),
                                               static_cast<int>(context), static_cast<int>(pipeline),
                                               static_cast<int>(experts)));
    }
    if (result_.legal == 0)
      user_error("no layout of {} GPUs is valid for this config; reason for the first one tried: {}",
                 cluster.gpus, refusal_.empty() ? indivisible_ : refusal_);
    if (result_.layouts.empty()) report_misfit();
    std::ranges::stable_sort(
        result_.layouts, [](const Layout& a, const Layout& b) { return a.time.total() < b.time.total(); });
    add_own();
    return std::move(result_);
  }

 private:
  /// Expert-parallel sizes among the `ranks` of a stage.
  std::vector<int64_t> expert_sizes(int64_t ranks) const {
    const int64_t experts = config_.model.num_moe_experts;
    return experts == 0 ? std::vector<int64_t>{1} : divisors(std::gcd(ranks, experts));
  }

  Layout layout(const Config& config, const parallel::ProcessGrid& grid) {
    Layout layout{.config = config, .grid = grid, .time = model_.predict(config)};
    layout.tokens_per_gpu = static_cast<double>(config.training.global_batch_size * config.model.seq_length) /
                            layout.time.total() / grid.world;
    return layout;
  }

  /// Replaces the best variant by a faster one that fits. Returns the bytes of a faster one that does not fit, else 0.
  int64_t improve(std::optional<Layout>& best, const Config& way, const parallel::ProcessGrid& grid) {
    Layout candidate = layout(way, grid);
    if (best && candidate.time.total() >= best->time.total()) return 0;
    candidate.memory_bytes = planned_bytes_(way, grid);
    if (candidate.memory_bytes > result_.capacity_bytes) return candidate.memory_bytes;
    best = std::move(candidate);
    return 0;
  }

  /// Adds the fastest variant of a layout of ranks that fits.
  void add_grid(const parallel::ProcessGrid& grid) {
    std::vector<std::pair<double, Config>> candidates;  // by the lower bound of their time
    std::vector<Config> all = ways(config_, grid);
    if (all.empty())
      indivisible_ =
          fmt::format("training.global_batch_size ({}) is not a multiple of {} data-parallel ranks",
                      config_.training.global_batch_size, grid[Axis::data]);
    for (Config& way : all) {
      std::string why = refusal(way, model_.cluster().gpu, grid);
      if (!why.empty()) {  // the first layout has the least parallelism, so its reason is not its own
        if (refusal_.empty()) refusal_ = std::move(why);
        continue;
      }
      ++result_.legal;
      const double least = model_.min_bytes(way);
      if (least > static_cast<double>(result_.capacity_bytes)) {
        miss(way, grid, static_cast<int64_t>(least));
        continue;
      }
      double seconds = model_.min_seconds(way);
      if (const auto kept = with_kept_weights(way)) seconds = std::min(seconds, model_.min_seconds(*kept));
      candidates.emplace_back(seconds, std::move(way));
    }
    std::ranges::stable_sort(candidates, [](const auto& a, const auto& b) { return a.first < b.first; });
    std::optional<Layout> best;
    for (const auto& [least, way] : candidates) {
      if (best && least >= best->time.total()) break;
      if (const auto kept = with_kept_weights(way)) improve(best, *kept, grid);
      if (const int64_t bytes = improve(best, way, grid); bytes > 0) miss(way, grid, bytes);
    }
    if (!best) return;
    best->settings = settings_of(best->config, config_);
    result_.layouts.push_back(std::move(*best));
  }

  void miss(const Config& config, const parallel::ProcessGrid& grid, int64_t bytes) {
    ++result_.too_large;
    if (nearest_bytes_ != 0 && bytes >= nearest_bytes_) return;
    nearest_bytes_ = bytes;
    nearest_ =
        fmt::format("{}, microbatch {}, recompute {}, shard {}", grid.str(), config.training.micro_batch_size,
                    to_string(config.training.recompute), to_string(config.parallel.shard));
  }

  [[noreturn]] void report_misfit() const {
    user_error(
        "no layout of {} GPUs fits into the {} that a plan may use on an {}; the nearest one needs {} ({}); "
        "options: more GPUs, optimizer.main_grad_dtype: bf16, exp_avg_dtype and exp_avg_sq_dtype: bf16 or "
        "fp8, store_param_remainders: true, offload: state",
        model_.cluster().gpus, human_bytes(result_.capacity_bytes), model_.cluster().gpu.title,
        human_bytes(nearest_bytes_), nearest_);
  }

  void add_own() {
    const config::ParallelConfig& own = config_.parallel;
    const int64_t ranks = own.model_ranks();
    if (model_.cluster().gpus % ranks != 0) {
      result_.configured_refusal =
          fmt::format("{} GPUs are not a multiple of the fewest ranks of the parallel section, {}",
                      model_.cluster().gpus, ranks);
      return;
    }
    const parallel::ProcessGrid grid = train::grid_of(own, model_.cluster().gpus);
    result_.configured_refusal = refusal(config_, model_.cluster().gpu, grid);
    if (!result_.configured_refusal.empty()) return;
    result_.configured = layout(config_, grid);
    result_.configured->memory_bytes = planned_bytes_(config_, grid);
  }

  const Config& config_;
  StepModel model_;
  const PlannedBytes& planned_bytes_;
  SearchResult result_;
  std::string refusal_, indivisible_, nearest_;
  int64_t nearest_bytes_ = 0;
};

}  // namespace

int64_t SearchResult::configured_rank() const {
  return 1 + std::ranges::count_if(layouts, [&](const Layout& layout) {
           return configured && layout.time.total() < configured->time.total();
         });
}

SearchResult search(const Config& config, const Cluster& cluster, const PlannedBytes& planned_bytes) {
  if (config.precision.dtype != config::ComputeDType::bf16)
    user_error("precision.dtype {}: --plan predicts only BF16 and FP8; set precision.dtype to bf16",
               config::to_string(config.precision.dtype));
  Config own = config;
  own.precision.mx_gemms = caps_of(cluster.gpu.sm).mx;
  return Search(own, cluster, planned_bytes).run();
}

}  // namespace te::planner
