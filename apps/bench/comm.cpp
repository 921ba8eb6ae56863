#include "bench/comm.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>

#include "bench/session.h"
#include "config/config.h"
#include "core/error.h"
#include "model/expert_dispatch.h"
#include "parallel/groups.h"
#include "parallel/placement.h"
#include "parallel/watchdog.h"
#include "train/execution.h"
#include "train/step_runner.h"

namespace te::bench {
namespace {

using parallel::Axis;
using parallel::Channel;
using parallel::Communicator;
using parallel::Groups;
using parallel::ProcessGrid;

struct CommOptions {
  Options common;
  std::string config;
  std::vector<std::string> overrides;
};

enum class Exchange { all_reduce, all_gather, reduce_scatter, all_to_all, send_receive };
constexpr const char* kExchangeNames[] = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all",
                                          "send, receive"};

/// One kind of collective or point-to-point communication of a training step.
struct Transfer {
  const char* group;
  std::string what;
  Exchange exchange;
  DType dtype;
  int64_t elements;  ///< of the larger buffer: input of all_reduce and reduce_scatter, output of all_gather
  int ranks;
  Communicator* communicator = nullptr;       ///< null for pipeline send and receive
  parallel::PeerTransport* copies = nullptr;  ///< copy engines, used instead of the communicator if set

  int64_t bytes() const { return elements * static_cast<int64_t>(dtype_size(dtype)); }
  /// Minimum number of bytes that a rank sends per byte of the buffer. It makes rates of groups of any size comparable
  /// with the link's rate ("bus bandwidth" of nccl-tests).
  double sent_share() const {
    const double others = static_cast<double>(ranks - 1) / ranks;
    if (exchange == Exchange::all_reduce) return 2 * others;
    return exchange == Exchange::send_receive ? 1 : others;
  }
};

using AddTokens = std::function<void(const std::string& what, Exchange, DType, int64_t elements)>;

/// With sequence parallelism: all-gather of an FP8 operand as wide as the residual stream. With scales per 128 values
/// both layouts are gathered, each with its own scales (model/operand_gather.h).
void add_fp8_operand(const config::Config& config, const Groups& groups, train::StepRunner& planned,
                     const AddTokens& add) {
  const int64_t tokens = planned.model().dims().tokens, hidden = planned.model().dims().hidden,
                chunks = config.parallel.tensor_overlap;
  const parallel::TensorParallel tensor(groups.tensor(), true, static_cast<int>(chunks),
                                        groups.tensor_peer_transport());
  const auto scaling = fp8::make_scaling(config.precision.fp8_recipe, config.precision);
  if (config.precision.fp8 == config::Fp8Mode::off || !scaling->gathers_quantized(tensor, tokens)) return;
  const kernels::ScaleLayout layout = scaling->layout(fp8::OperandRole::input);
  const auto gather = [&](const char* what, DType dtype, int64_t elements) {
    add(what, Exchange::all_gather, dtype, elements);
  };
  gather("FP8 operand of a linear", DType::e4m3, tokens / chunks * hidden);
  if (layout != kernels::ScaleLayout::vectors) return;
  gather("its scales", DType::f32, kernels::scale_shape(layout, tokens, hidden).numel());
  gather("its column-wise layout", DType::e4m3, tokens * hidden);
  gather("scales of the column-wise layout", DType::f32,
         kernels::scale_shape(layout, hidden, tokens / chunks).numel());
}

/// Whether rows are sent to experts as FP8 (model/expert_dispatch.h).
bool sends_fp8_rows(const config::Config& config, DType dtype) {
  return model::sends_fp8_selections(config.model.moe_router_topk, config.parallel.expert, dtype,
                                     config.parallel.moe_dispatch_factor) &&
         config.precision.fp8 != config::Fp8Mode::off && config.adapter.type == config::AdapterType::none &&
         !config::mixes_precisions(config) &&
         fp8::make_scaling(config.precision.fp8_recipe, config.precision)->one_scale();
}

using AddTransfer = std::function<void(const char* name, std::string what, Exchange, DType, int64_t elements,
                                       Communicator& group)>;

/// The largest buckets of a gradient group. Weights that are not trained have no gradients, and are gathered only if
/// they are sharded.
void add_buckets(const config::Config& config, const Groups& groups, train::StepRunner& planned,
                 GradientGroup of, const AddTransfer& add) {
  constexpr const char* kNames[] = {"data", "expert data", "stage"};
  Communicator& group = groups.gradient_ranks(of);
  if (group.size() == 1) return;
  int64_t largest = 0, values = 0, bytes = 0;
  const parameters::ParameterStore& store = planned.model().parameters();
  for (const parameters::Bucket& bucket : store.buckets()) {
    if (bucket.group != of) continue;
    if (bucket.trainable) largest = std::max(largest, bucket.size());
    if (!bucket.trainable && !store.shards_values(bucket)) continue;
    int64_t& of_its_kind = store.gathers_bytes(bucket) ? bytes : values;
    of_its_kind = std::max(of_its_kind, bucket.size());
  }
  const DType gradients =
      config.optimizer.main_grad_dtype == config::GradDType::fp32 ? DType::f32 : DType::bf16;
  const auto add_bucket = [&](const char* what, Exchange exchange, DType dtype, int64_t elements) {
    if (elements > 0) add(kNames[static_cast<size_t>(of)], what, exchange, dtype, elements, group);
  };
  add_bucket("gradients of a bucket", Exchange::reduce_scatter, gradients, largest);
  add_bucket("weights of a bucket", Exchange::all_gather, planned.model().dims().dtype, values);
  add_bucket("FP8 weights of a bucket", Exchange::all_gather, DType::e4m3, bytes);
}

/// The communication of this rank. Of the gradient buckets only the largest is measured.
std::vector<Transfer> transfers_of(const config::Config& config, const Groups& groups,
                                   train::StepRunner& planned) {
  const model::Dimensions& dims = planned.model().dims();
  const ProcessGrid& grid = groups.grid();
  std::vector<Transfer> transfers;
  const auto add = [&](const char* name, std::string what, Exchange exchange, DType dtype, int64_t elements,
                       Communicator& group) {
    transfers.push_back({name, std::move(what), exchange, dtype, elements, group.size(), &group});
  };
  // With NCCL, and also with copy engines if the config sets them.
  const auto add_tokens = [&](const std::string& what, Exchange exchange, DType dtype, int64_t elements) {
    add("tensor", what, exchange, dtype, elements, groups.tensor());
    if (groups.tensor_peer_transport() == nullptr) return;
    add("tensor", what + ", copy engines", exchange, dtype, elements, groups.tensor());
    transfers.back().copies = groups.tensor_peer_transport();
  };
  if (grid[Axis::tensor] > 1) {
    const int64_t chunk = dims.tokens / config.parallel.tensor_overlap * dims.hidden;
    if (config.parallel.sequence) {
      add_fp8_operand(config, groups, planned, add_tokens);
      add_tokens("residual stream, before attention or MLP", Exchange::all_gather, dims.dtype, chunk);
      add_tokens("residual stream, after attention or MLP", Exchange::reduce_scatter, dims.dtype, chunk);
    } else {
      add("tensor", "residual stream, after attention or MLP", Exchange::all_reduce, dims.dtype, chunk,
          groups.tensor());
    }
  }
  if (grid[Axis::context] > 1) {
    Communicator& group = groups.context();
    if (config.model.num_query_groups / grid[Axis::tensor] % grid[Axis::context] ==
        0) {  // model/context_parallel.h
      add("context", "queries, keys, values by head", Exchange::all_to_all, dims.dtype,
          dims.tokens * dims.qkv, group);
      add("context", "attention output by token", Exchange::all_to_all, dims.dtype,
          dims.tokens * dims.attention, group);
    } else {
      const int64_t all = grid[Axis::context] * dims.tokens * (dims.qkv - dims.attention);
      add("context", "keys and values", Exchange::all_gather, dims.dtype, all, group);
      add("context", "gradients of keys and values", Exchange::reduce_scatter, dims.dtype, all, group);
    }
  }
  if (grid.experts > 1) {
    const int64_t experts = config.model.num_moe_experts, topk = config.model.moe_router_topk;
    const auto add_rows = [&](const char* what, DType dtype, double of_rank) {
      const int64_t elements = std::llround(of_rank * static_cast<double>(dims.residual_rows)) * dims.hidden;
      add("expert", what, Exchange::all_to_all, dtype, grid.experts * elements, groups.expert());
    };
    if (sends_fp8_rows(config, dims.dtype))
      add_rows("FP8 selections of a balanced load, to their experts", DType::e4m3,
               static_cast<double>(topk) / grid.experts);
    if (config.parallel.moe_dispatch_factor < 1)  // several rounds
      add_rows("selections of a balanced load, to their experts or back", dims.dtype,
               static_cast<double>(topk) / grid.experts);
    else
      add_rows("tokens of a balanced load, to their experts or back", dims.dtype,
               model::expected_token_share(experts, topk, grid.experts));
  }
  for (const GradientGroup group : kGradientGroups) add_buckets(config, groups, planned, group, add);
  if (grid[Axis::pipeline] > 1) {
    transfers.push_back({"pipeline", "residual stream, stage 0 to 1 and back", Exchange::send_receive,
                         dims.dtype, dims.residual_rows * dims.hidden, 2});
  }
  return transfers;
}

/// Send and receive one after the other on one CUDA stream, so that no stage waits for a send that is queued after its
/// own.
void there_and_back(const Context& context, const Groups& groups, const Tensor& sent,
                    const Tensor& received) {
  if (groups.at()[Axis::pipeline] == 0) {
    groups.send(context, sent, Channel::forward_to_next);
    groups.receive(context, received, Channel::backward_from_next);
  } else {
    groups.receive(context, received, Channel::forward_from_previous);
    groups.send(context, sent, Channel::backward_to_previous);
  }
}

/// Milliseconds of a collective with copy engines. Collective over all ranks of the world.
double copied_ms(const Context& context, int repeats, const Transfer& transfer) {
  parallel::PeerTransport& copies = *transfer.copies;
  const auto bytes = static_cast<size_t>(transfer.bytes());
  const DeviceBuffer memory(context, bytes), first(context, bytes), second(context, bytes);
  const auto shared = copies.register_memory(context, memory.data(), bytes, transfer.what);
  // Rows of 16 bytes; the width of a row does not change the time.
  const auto width = static_cast<int64_t>(16 / dtype_size(transfer.dtype));
  const int64_t rows = transfer.elements / width;
  const Tensor there{memory.data(), transfer.dtype, {rows, width}};
  const Tensor full{first.data(), transfer.dtype, {rows, width}};
  const Tensor shard{second.data(), transfer.dtype, {rows / transfer.ranks, width}};
  fill_random(context, full);
  fill_random(context, shard);
  const auto call = [&] {
    if (transfer.exchange == Exchange::all_gather) return copies.gather(context, shard, there, 1, {});
    copies.reduce(context, full, shard, there, 1, [](int64_t, int64_t) {}, {});
  };
  return median_ms(context, repeats, call, [&] { transfer.communicator->barrier(context); });
}

/// Milliseconds on this rank; 0 if it does not take part. All ranks of the group call it; with copy engines, all ranks
/// of the world.
double transfer_ms(const Context& context, int repeats, const Groups& groups, const Transfer& transfer) {
  if (transfer.copies != nullptr) return copied_ms(context, repeats, transfer);
  const auto bytes = static_cast<size_t>(transfer.bytes());
  const DeviceBuffer first(context, bytes), second(context, bytes);
  const Tensor full{first.data(), transfer.dtype, {transfer.elements}};
  const Tensor result{second.data(), transfer.dtype, {transfer.elements}};
  fill_random(context, full);
  if (transfer.communicator == nullptr) {
    if (groups.at()[Axis::pipeline] > 1) return 0;
    return median_ms(context, repeats, [&] { there_and_back(context, groups, full, result); }) / 2;
  }
  Communicator& group = *transfer.communicator;
  const int64_t shard = transfer.elements / group.size();
  const Tensor own{second.data(), transfer.dtype, {shard}};
  // Repeated in-place sums would overflow, so every call starts from the same values.
  const auto prepare = [&] {
    if (transfer.exchange == Exchange::all_reduce) context.copy(result, full);
    group.barrier(context);
  };
  const auto call = [&] {
    switch (transfer.exchange) {
      case Exchange::all_reduce:
        return group.all_reduce(context, result, parallel::ReduceOp::sum);
      case Exchange::all_gather:
        return group.all_gather(context, own, full);
      case Exchange::reduce_scatter:
        return group.reduce_scatter(context, full, own);
      case Exchange::all_to_all:
        return group.all_to_all(context, full, result);
      case Exchange::send_receive:
        break;
    }
  };
  if (transfer.exchange == Exchange::all_gather) fill_random(context, own);
  return median_ms(context, repeats, call, prepare);
}

/// Peak rate, in bytes/s, at which a rank can send to the ranks of a group, if these are GPUs of one host; else 0.
double peak_of(const parallel::Placement& placement, const std::vector<int>& ranks) {
  for (const parallel::HostPlacement& host : placement) {
    if (std::includes(host.ranks.begin(), host.ranks.end(), ranks.begin(), ranks.end()))
      return host.link_bytes_per_second;
  }
  return 0;
}

/// The ranks of the leader's group, ascending.
std::vector<int> ranks_of(const Transfer& transfer, const Groups& groups) {
  if (transfer.communicator != nullptr) return transfer.communicator->world_ranks();
  const std::vector<int> stages = groups.grid().ranks_along({Axis::pipeline}, 0);
  return {stages[0], stages[1]};
}

/// Collective; rank 0 adds a row to the table and to the report.
void measure_transfer(const CommOptions& options, parallel::World& world, const Context& context,
                      const Groups& groups, const parallel::Placement& placement, const Transfer& transfer,
                      std::vector<std::vector<std::string>>& table, nlohmann::json& rows) {
  const parallel::Watchdog::Guard guard(context, transfer.what);
  const double own_ms = transfer_ms(context, options.common.repeats, groups, transfer);
  // The slowest group of the first stage, to which rank 0 belongs.
  const double ms = world.max_f64(own_ms, groups.grid().members(parallel::Group::stage, world.rank()));
  if (!world.leader()) return;
  const double rate = static_cast<double>(transfer.bytes()) / (ms * 1e-3), bus = rate * transfer.sent_share();
  const double peak = peak_of(placement, ranks_of(transfer, groups));
  const char* name = kExchangeNames[static_cast<size_t>(transfer.exchange)];
  table.push_back({transfer.group, fmt::format("{}: {}", name, transfer.what),
                   std::string(dtype_name(transfer.dtype)), std::to_string(transfer.ranks),
                   human_bytes(transfer.bytes()), fmt::format("{:.4f}", ms),
                   fmt::format("{:.2f}", rate / 1e9), fmt::format("{:.2f}", bus / 1e9),
                   peak > 0 ? fmt::format("{:.0f}%", 100 * bus / peak) : "-"});
  rows.push_back({{"group", transfer.group},
                  {"operation", name},
                  {"what", transfer.what},
                  {"dtype", dtype_name(transfer.dtype)},
                  {"ranks", transfer.ranks},
                  {"bytes", transfer.bytes()},
                  {"ms", ms},
                  {"bytes_per_s", rate},
                  {"bus_bytes_per_s", bus},
                  {"share_of_peak", peak > 0 ? nlohmann::json(bus / peak) : nlohmann::json()}});
}

void run(const CommOptions& options, parallel::World& world) {
  if (world.size() == 1)
    user_error(
        "te-bench comm needs at least two ranks; start it with mpirun -n 2 te-bench comm --config FILE");
  config::Config config;
  ProcessGrid grid;
  world.run_collectively([&] {
    config = load_without_data(options.config, options.overrides);
    grid = train::grid_of(config.parallel, world.size());
    if (world.leader()) check_report(options.common);
  });
  parallel::Watchdog::set_timeout(static_cast<double>(config.parallel.timeout_seconds));
  const Context context = open_rank_device(config, world);
  const parallel::Placement placement = parallel::find_placement(world, context);
  const Groups groups = Groups::connect(world, context, grid, train::connect_options(config));
  const Groups alone = Groups::dry_run(grid, world.rank());
  train::StepRunner planned(config, context, alone);  // only for the sizes; allocates nothing
  std::vector<std::vector<std::string>> table{
      {"group", "communication", "dtype", "ranks", "size", "ms", "GB/s", "bus GB/s", "of peak"}};
  nlohmann::json report = report_head(context, options.common), rows = nlohmann::json::array();
  for (const Transfer& transfer : transfers_of(config, groups, planned))
    measure_transfer(options, world, context, groups, placement, transfer, table, rows);
  if (!world.leader()) return;
  const parallel::HostPlacement& host = placement.front();
  const std::string link = host.link.empty() ? ""
                                             : fmt::format("; {}, {:.0f} GB/s in each direction", host.link,
                                                           host.link_bytes_per_second / 1e9);
  std::printf("%s, %s, on %zu host(s)%s; medians of %d\n", config.name.c_str(), grid.str().c_str(),
              placement.size(), link.c_str(), options.common.repeats);
  print_table(table);
  report["config"] = config.name;
  report["layout"] = grid.str();
  report["hosts"] = parallel::host_lines(placement, placement.size());
  report["link"] = host.link;
  report["peak_bytes_per_s"] = host.link_bytes_per_second;
  report["communication"] = std::move(rows);
  write_report(options.common, report);
}

}  // namespace

void add_comm_command(CLI::App& app, parallel::World& world) {
  const auto options = std::make_shared<CommOptions>();
  CLI::App* command = app.add_subcommand(
      "comm", "Communication of one step of a config's layout, timed one operation at a time (needs mpirun)");
  command->add_option("--config", options->config, "YAML file of te-train")->required()->type_name("FILE");
  command->add_option("--set", options->overrides, "override a key, as in te-train (may be repeated)")
      ->type_name("KEY=VALUE");
  command->add_option("--repeats", options->common.repeats, "number of calls; the median is reported")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--json", options->common.json, "also write the report to this file")
      ->type_name("FILE");
  command->callback([options, &world] { run(*options, world); });
}

}  // namespace te::bench
