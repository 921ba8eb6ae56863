#include "planner/op_time.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "cost/op_cost.h"
#include "kernels/activation/activation.h"
#include "kernels/attention/attention.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_activation.h"
#include "kernels/moe/grouped_gemm.h"
#include "kernels/moe/quantize_experts.h"
#include "kernels/norm/norm.h"
#include "kernels/quantize/quantize.h"
#include "kernels/quantize/quantize_groups.h"
#include "kernels/rope/rope.h"

namespace te::planner {
namespace {

constexpr double kTileRows = 128, kTileColumns = 256;

template <class Args>
const Args* as(const OpCall& call) {
  return std::any_cast<Args>(&call.args);
}

// --- GEMMs -------------------------------------------------------------------------------------------------

struct GemmShape {
  double m = 0, n = 0, k = 0;
  double rate = 0;
};

double rate_of(const kernels::Matrix& a, const Gpu& gpu) {
  if (dtype_size(a.dtype()) != 1) return gpu.bf16;
  if (a.layout == kernels::ScaleLayout::tensor) return gpu.fp8;
  return a.layout == kernels::ScaleLayout::rows ? gpu.fp8_rows : gpu.fp8_blocks;
}

/// Time with split-K into `splits` parts, which are then summed in FP32.
double split_gemm_seconds(const GemmShape& shape, int splits, const Gpu& gpu) {
  const double tiles = std::ceil(shape.m / kTileRows) * std::ceil(shape.n / kTileColumns) * splits;
  const double depth = shape.k / splits;
  // The overhead of a tile is constant in time, so it counts as more k at a higher rate.
  const double share =
      depth / (depth + gpu.tile_depth * shape.rate / gpu.fp8) * tiles / (tiles + gpu.lost_tiles);
  const double parts = splits == 1 ? 0 : 2 * sizeof(float) * shape.m * shape.n * splits;
  return 2.0 * shape.m * shape.n * shape.k / (shape.rate * share) + parts / gpu.copy;
}

double gemm_seconds(const GemmShape& shape, double bytes, const Gpu& gpu) {
  double seconds = split_gemm_seconds(shape, 1, gpu);
  for (int splits = 2; splits <= 32; splits *= 2)
    seconds = std::min(seconds, split_gemm_seconds(shape, splits, gpu));
  return std::max(seconds, bytes / gpu.copy);
}

/// A GEMM with fused activation: the bytes that it moves in addition to the GEMM are added.
double gemm_seconds(const OpCall& call, const Gpu& gpu) {
  const double bytes = cost::op_cost(call).bytes;
  if (const auto* gemm = as<kernels::Gemm>(call)) {
    const double m = static_cast<double>(gemm->out.rows()), n = static_cast<double>(gemm->out.cols());
    return gemm_seconds(
        {m, n, static_cast<double>(kernels::gemm_flops(*gemm)) / (2 * m * n), rate_of(gemm->a, gpu)}, bytes,
        gpu);
  }
  kernels::Matrix a;
  Tensor out;
  double plain = 0;
  if (const auto* forward = as<kernels::GemmActivationForward>(call)) {
    a = forward->a, out = forward->out;
    plain = static_cast<double>(a.values.bytes() + forward->b.values.bytes() + out.bytes());
  } else {
    const auto* backward = as<kernels::GemmActivationBackward>(call);
    a = backward->a, out = backward->d_y;
    plain = static_cast<double>(a.values.bytes() + backward->b.bytes());
  }
  const GemmShape shape{static_cast<double>(out.rows()), static_cast<double>(out.cols()),
                        static_cast<double>(a.cols()), rate_of(a, gpu)};
  return gemm_seconds(shape, plain, gpu) + (bytes - plain) / gpu.copy;
}

const GroupedRates& grouped_rates_of(const kernels::Matrix& a, const Gpu& gpu) {
  if (dtype_size(a.dtype()) != 1) return gpu.grouped_bf16;
  return a.layout == kernels::ScaleLayout::tensor ? gpu.grouped_fp8 : gpu.grouped_fp8_blocks;
}

double grouped_gemm_seconds(const OpCall& call, const Gpu& gpu) {
  const OpCost cost = cost::op_cost(call);
  if (const auto* gemm = as<kernels::GroupedGemm>(call)) {
    const GroupedRates& rates = grouped_rates_of(gemm->a, gpu);
    return std::max(cost.flops / (gemm->trans_b ? rates.fprop : rates.dgrad), cost.bytes / gpu.copy);
  }
  const auto* wgrad = as<kernels::GroupedWgrad>(call);
  TE_CHECK(wgrad != nullptr, "{} without its arguments", call.name);
  const double sums = static_cast<double>(wgrad->out.bytes()) * (wgrad->accumulate ? 2 : 1);
  return cost.flops / grouped_rates_of(wgrad->a, gpu).wgrad + gpu.grouped_sums * sums / gpu.copy;
}

// --- attention ---------------------------------------------------------------------------------------------

constexpr double kTaskKeys = 128;  ///< of a task of the backward pass (kernels/attention/flash_backward.cu)

double attention_seconds(const OpCall& call, const Gpu& gpu) {
  const auto* forward = as<kernels::AttentionForward>(call);
  const auto* backward = as<kernels::AttentionBackward>(call);
  TE_CHECK(forward != nullptr || backward != nullptr, "{} without its arguments", call.name);
  const kernels::AttentionShape shape = forward != nullptr ? forward->shape : backward->shape;
  const double rate = forward == nullptr     ? gpu.attention_backward
                      : shape.head_dim <= 64 ? gpu.attention_forward_narrow
                                             : gpu.attention_forward;
  double keys = static_cast<double>(shape.seq);
  if (shape.window > 0) keys = std::min(keys, static_cast<double>(shape.window));
  const double seconds = cost::op_cost(call).flops / rate * (keys + gpu.attention_ramp) / keys;
  if (forward != nullptr) return seconds;
  const double tasks = static_cast<double>(shape.batch * shape.num_query_groups) *
                       std::ceil(static_cast<double>(shape.seq) / kTaskKeys);
  return seconds * (tasks + gpu.lost_attention_tasks) / tasks;
}

// --- passes over memory ------------------------------------------------------------------------------------

double bandwidth_share(const OpCall& call, const Gpu& gpu) {
  const std::string_view name = call.name;
  const auto any_of = [&](std::initializer_list<std::string_view> names) {
    return std::ranges::find(names, name) != names.end();
  };
  if (any_of({"norm_forward", "norm_backward", "qk_norm_forward", "qk_norm_backward"})) return gpu.norm;
  if (any_of({"activation_forward", "activation_backward"})) return gpu.activation;
  const auto* experts = as<kernels::QuantizeExperts>(call);
  const auto* groups = as<kernels::QuantizeGroups>(call);
  if ((experts != nullptr && experts->source) || (groups != nullptr && groups->source))
    return gpu.quantize_tokens;
  if (name == "router_gemm_backward") return gpu.router_gradient;
  if (any_of({"router_forward", "router_backward", "router_statistics", "expert_rows"})) return gpu.router;
  if (any_of({"quantize", "quantize_experts", "quantize_groups", "quantize_mx", "quantize_nvfp4",
              "transpose_fp8", "cast", "bias_gradient"}))
    return gpu.quantize;
  if (name == "rope") return gpu.rope;
  if (name.starts_with("cross_entropy")) return gpu.loss;
  if (any_of({"adamw", "sum_of_squares", "muon_momentum", "muon_update", "zero_granules", "fill"}))
    return gpu.optimizer;
  return gpu.others;
}

/// The FP8 output of an operation, or null.
const kernels::Fp8Output* fp8_output_of(const OpCall& call) {
  if (const auto* norm = as<kernels::NormForward>(call)) return &norm->y_fp8;
  if (const auto* norm = as<kernels::NormBackward>(call)) return &norm->dx_fp8;
  if (const auto* activation = as<kernels::ActivationForward>(call)) return &activation->y_fp8;
  if (const auto* gemm = as<kernels::GemmActivationForward>(call)) return &gemm->y_fp8;
  if (const auto* activation = as<kernels::ActivationBackward>(call)) return &activation->dx_fp8;
  if (const auto* quantize = as<kernels::Quantize>(call)) return &quantize->out;
  if (const auto* rope = as<kernels::Rope>(call)) return &rope->out;
  return nullptr;
}

}  // namespace

double op_seconds(const OpCall& call, const Gpu& gpu) {
  TE_CHECK(!is_communication(call), "{} is a collective", call.name);
  const std::string_view name = call.name;
  if (name == "attention_forward" || name == "attention_backward")
    return gpu.launch + attention_seconds(call, gpu);
  const kernels::Fp8Output* output = fp8_output_of(call);
  const double again = output != nullptr && output->requantize.state != nullptr ? gpu.requantize : 0.0;
  if (name.starts_with("grouped")) return gpu.launch + grouped_gemm_seconds(call, gpu);
  if (name.starts_with("gemm")) return gpu.launch + again + gemm_seconds(call, gpu);
  return gpu.launch + again + cost::op_cost(call).bytes / (gpu.copy * bandwidth_share(call, gpu));
}

bool is_communication(const OpCall& call) {
  return !call.group.empty();
}

double communication_seconds(std::string_view name, double bytes, const GroupPlacement& place,
                             const Gpu& gpu) {
  if (place.ranks <= 1) return 0;
  const bool one_host = place.per_host >= place.ranks;
  const double bandwidth = one_host ? gpu.nvlink : std::min(gpu.nvlink, place.per_host * gpu.network);
  const double latency = one_host ? gpu.nvlink_latency : gpu.network_latency;
  const bool to_a_peer = name == "send" || name == "receive";
  const double share = to_a_peer ? 1.0 : (place.ranks - 1.0) / place.ranks;
  const double phases = name == "all_reduce" ? 2.0 : 1.0;
  return phases * (latency + share * bytes / bandwidth);
}

bool all_reduces_amax(const OpCall& call) {
  const kernels::Fp8Output* output = fp8_output_of(call);
  return output != nullptr && output->requantize.all_reduce_amax != nullptr;
}

}  // namespace te::planner
