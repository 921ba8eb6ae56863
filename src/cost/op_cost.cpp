#include "cost/op_cost.h"

#include <algorithm>
#include <initializer_list>

#include "core/error.h"
#include "kernels/activation/activation.h"
#include "kernels/adamw/adamw.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/decode.h"
#include "kernels/common/granule.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/dropout/dropout.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/embedding/embedding.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_activation.h"
#include "kernels/grad_norm/grad_norm.h"
#include "kernels/moe/capacity.h"
#include "kernels/moe/dispatch.h"
#include "kernels/moe/expert_activation.h"
#include "kernels/moe/grouped_gemm.h"
#include "kernels/moe/permute.h"
#include "kernels/moe/quantize_experts.h"
#include "kernels/moe/router.h"
#include "kernels/moe/router_gemm.h"
#include "kernels/moe/send_fp8.h"
#include "kernels/muon/muon.h"
#include "kernels/norm/norm.h"
#include "kernels/param_split/param_split.h"
#include "kernels/qk_norm/qk_norm.h"
#include "kernels/quantize/quantize.h"
#include "kernels/quantize/quantize_groups.h"
#include "kernels/quantize/quantize_mx.h"
#include "kernels/quantize/quantize_nvfp4.h"
#include "kernels/rearrange/rearrange.h"
#include "kernels/rope/rope.h"
#include "kernels/scale_update/scale_update.h"

namespace te::cost {
namespace {

using namespace kernels;

double tensor_bytes(const Tensor& tensor) {
  return static_cast<double>(tensor.bytes());
}

OpCost moves(std::initializer_list<Tensor> tensors) {
  OpCost cost;
  for (const Tensor& tensor : tensors) cost.bytes += tensor_bytes(tensor);
  return cost;
}

OpCost moves(std::initializer_list<Tensor> tensors, const Fp8Output& out) {
  OpCost cost = moves(tensors);
  cost.bytes += tensor_bytes(out.rowwise) + tensor_bytes(out.columnwise);
  return cost;
}

OpCost moves(std::initializer_list<Tensor> tensors, const QuantizeGroups& out) {
  OpCost cost = moves(tensors);
  for (const Matrix* const layout : {&out.rowwise, &out.columnwise})
    cost.bytes += tensor_bytes(layout->values) + tensor_bytes(layout->scales);
  return cost;
}

/// FLOPs of one causal score GEMM: twice the area between the diagonal and the window's end.
double causal_flops(const AttentionShape& shape) {
  const auto area_up_to = [&](int64_t position) {
    const int64_t window = shape.window == 0 ? position : std::min(shape.window, position);
    return window * (2 * position - window);
  };
  const bool range = shape.range.count > 0;
  const int64_t area = area_up_to(range ? shape.range.keys() : shape.seq) - area_up_to(shape.range.position);
  return static_cast<double>(shape.batch * shape.num_heads) * static_cast<double>(area) *
         static_cast<double>(shape.head_dim);
}

OpCost cost_of(const ActivationForward& args) {
  return moves({args.x, args.y}, args.y_fp8);
}

OpCost cost_of(const ActivationBackward& args) {
  return moves({args.x, args.dy, args.dx}, args.dx_fp8);
}

OpCost cost_of(const AdamW& args) {
  OpCost cost =
      moves({args.exp_avg, args.exp_avg, args.exp_avg_sq, args.exp_avg_sq, args.main_grad, args.main_param,
             args.main_param, args.remainder, args.remainder, args.flags, args.exp_avg_exponents,
             args.exp_avg_exponents, args.exp_avg_sq_exponents, args.exp_avg_sq_exponents});
  // FP32 master weights that are split into values and remainders are also read from the values.
  if (args.param.data != args.main_param.data) cost.bytes += tensor_bytes(args.param);
  if (args.remainder) cost.bytes += tensor_bytes(args.param);
  return cost;
}

OpCost cost_of(const AttentionForward& args) {
  OpCost cost = moves({args.qkv, args.o, args.lse, args.kv});
  cost.flops = 2.0 * causal_flops(args.shape);
  return cost;
}

OpCost cost_of(const AttentionBackward& args) {
  OpCost cost = moves({args.qkv, args.o, args.lse, args.d_o, args.dqkv, args.kv, args.dkv});
  cost.flops = 5.0 * causal_flops(args.shape);
  return cost;
}

OpCost cost_of(const ColumnChunks& args) {
  return {.bytes = 2.0 * static_cast<double>(args.parts.dim(0) * args.parts.dim(1) * args.cols) *
                   static_cast<double>(dtype_size(args.parts.dtype))};
}

OpCost cost_of(const CopyBlock& args) {
  return {.bytes = 2.0 * static_cast<double>(args.part.dim(0) * args.rows * args.part.dim(2)) *
                   static_cast<double>(dtype_size(args.part.dtype))};
}

OpCost cost_of(const RowOrder& args) {
  return moves({args.rows, args.ordered, args.index});
}

OpCost cost_of(const CrossEntropy& args) {
  return moves({args.logits, args.grad_scale != 0.0f ? args.logits : Tensor{}, args.targets, args.losses,
                args.z_losses});
}

OpCost cost_of(const CrossEntropyStatistics& args) {
  return moves({args.logits, args.targets, args.statistics});
}

OpCost cost_of(const CrossEntropyFromStatistics& args) {
  // Without gradients the loss follows from the statistics alone.
  const Tensor logits = args.grad_scale != 0.0f ? args.logits : Tensor{};
  return moves({logits, logits, args.targets, args.statistics, args.losses, args.z_losses});
}

OpCost cost_of(const DelayedScaleUpdate& args) {
  return moves({args.amax, args.history, args.scale, args.fp8_max});
}

OpCost cost_of(const Dropout& args) {
  return moves({args.x, args.y});
}

OpCost cost_of(const RowNumbers& args) {
  return moves({args.numbers, args.columns});
}

OpCost cost_of(const UniformNoise& args) {
  return moves({args.x, args.x});
}

OpCost cost_of(const EmbeddingForward& args) {
  return moves({args.tokens, args.out, args.out, args.positions ? args.out : Tensor{}});
}

OpCost cost_of(const EmbeddingBackward& args) {
  OpCost cost = moves({args.tokens, args.dout});
  // Rows of the table that change, each read and written: at most one per token.
  const double rows = static_cast<double>(std::min(args.dout.rows(), args.dtable.rows()));
  cost.bytes += 2.0 * rows * static_cast<double>(args.dtable.cols()) *
                static_cast<double>(dtype_size(args.dtable.dtype));
  return cost;
}

OpCost cost_of(const Gemm& args) {
  OpCost cost =
      moves({args.a.values, args.b.values, args.out, args.accumulate ? args.out : Tensor{}, args.bias});
  cost.flops = static_cast<double>(gemm_flops(args));
  return cost;
}

OpCost cost_of(const GemmActivationForward& args) {
  OpCost cost = moves({args.a.values, args.b.values, args.bias, args.out, args.y}, args.y_fp8);
  cost.flops = static_cast<double>(gemm_flops({.a = args.a, .b = args.b, .trans_b = true}));
  return cost;
}

OpCost cost_of(const GemmActivationBackward& args) {
  OpCost cost = moves({args.a, args.b, args.x, args.dx, args.y});
  cost.flops = static_cast<double>(gemm_flops({.a = args.a, .b = args.b}));
  return cost;
}

OpCost cost_of(const MuonCombine& args) {
  return moves({args.x, args.x, args.y});
}

OpCost cost_of(const MuonMomentum& args) {
  return moves({args.main_grad, args.momentum, args.momentum, args.update});
}

OpCost cost_of(const MuonNormalize& args) {
  return moves({args.x, args.x, args.sum_of_squares});
}

OpCost cost_of(const MuonPlace& args) {
  return moves({args.part, args.part});
}

OpCost cost_of(const MuonUpdate& args) {
  OpCost cost = moves({args.main_param, args.main_param, args.remainder, args.remainder});
  const int64_t n = args.remainder ? args.remainder.numel() : args.main_param.numel();
  cost.bytes += static_cast<double>(static_cast<size_t>(n) * dtype_size(args.orthogonal.dtype));
  if (args.param.data != args.main_param.data) cost.bytes += tensor_bytes(args.param);
  if (args.remainder) cost.bytes += tensor_bytes(args.param);
  return cost;
}

OpCost cost_of(const NormForward& args) {
  return moves({args.x, args.delta, args.sum, args.mean, args.rstd, args.y}, args.y_fp8);
}

OpCost cost_of(const NormBackward& args) {
  return moves({args.dy, args.x, args.mean, args.rstd, args.dresidual, args.dx}, args.dx_fp8);
}

OpCost cost_of(const ParamSplit& args) {
  return moves({args.main_param, args.value, args.remainder});
}

/// q and k of the packed buffer, read and written, and what is stored for the backward pass.
OpCost cost_of(const QkNormForward& args) {
  OpCost cost = moves({args.raw, args.rstd});
  cost.bytes += 2.0 * static_cast<double>(args.qkv.rows() * (args.shape.q_width() + args.shape.k_width())) *
                static_cast<double>(dtype_size(args.qkv.dtype));
  return cost;
}

/// The pass for the norm weights reads gradients and inputs; the other one reads them again and writes.
OpCost cost_of(const QkNormBackward& args) {
  OpCost cost = moves({args.raw, args.rstd, args.raw, args.rstd});
  cost.bytes += 3.0 * tensor_bytes(args.raw);
  return cost;
}

OpCost cost_of(const Quantize& args) {
  return moves({args.x}, args.out);
}

OpCost cost_of(const QuantizeGroups& args) {
  return moves({args.x, args.source}, args);
}

OpCost cost_of(const QuantizeMx& args) {
  return moves(
      {args.x, args.rowwise.values, args.rowwise.scales, args.columnwise.values, args.columnwise.scales});
}

/// The values are read once for the amax and once more.
OpCost cost_of(const QuantizeNvfp4& args) {
  return moves({args.x, args.x, args.rowwise.values, args.columnwise.values});
}

OpCost cost_of(const Rope& args) {
  if (args.out) return moves({args.qkv}, args.out);
  const double rotated = static_cast<double>((args.num_heads + args.num_query_groups) * args.head_dim);
  return {.bytes = 2.0 * static_cast<double>(args.qkv.rows()) * rotated *
                   static_cast<double>(dtype_size(args.qkv.dtype))};
}

OpCost cost_of(const ZeroGranules& args) {
  const auto granule = static_cast<double>(static_cast<size_t>(kAdamWGranule) * dtype_size(args.x.dtype));
  return {.bytes = tensor_bytes(args.flags) + static_cast<double>(args.count) * granule};
}

OpCost cost_of(const CacheAppend& args) {
  // Keys and values of a row: a row of qkv without the queries, read and written.
  const auto groups = static_cast<double>(args.cache.k.dim(1) * args.cache.k.dim(3));
  return {.bytes = 2.0 * static_cast<double>(args.qkv.rows()) * 2.0 * groups *
                   static_cast<double>(dtype_size(args.qkv.dtype))};
}

OpCost cost_of(const AttentionDecode& args) {
  // Only the device knows how much of the cache is read: at most all of it.
  return moves({args.qkv, args.cache.k, args.cache.v, args.o});
}

/// A few scalars.
OpCost cost_of(const ClipCoefficient&) {
  return {};
}

OpCost cost_of(const CurrentScale& args) {
  return moves({args.amax, args.scale});
}

OpCost cost_of(const CurrentScales& args) {
  return moves({args.amax, args.fp8_max, args.scale});
}

/// A few scalars.
OpCost cost_of(const RecordCurrentScale&) {
  return {};
}

OpCost cost_of(const RouterGemm& args) {
  OpCost cost = moves({args.x, args.weight, args.logits});
  cost.flops = 2.0 * static_cast<double>(args.x.numel()) * static_cast<double>(args.weight.rows());
  return cost;
}

OpCost cost_of(const RouterGemmBackward& args) {
  OpCost cost = moves({args.d_logits, args.x, args.weight, args.dx, args.dx, args.d_weight});
  if (args.accumulate) cost.bytes += tensor_bytes(args.d_weight);
  cost.flops = (args.d_weight ? 4.0 : 2.0) * static_cast<double>(args.x.numel()) *
               static_cast<double>(args.weight.rows());
  return cost;
}

OpCost cost_of(const RouterForward& args) {
  return moves({args.logits, args.experts, args.probs});
}

OpCost cost_of(const RouterStatistics& args) {
  return moves({args.logits, args.experts, args.counts, args.score_sums});
}

OpCost cost_of(const RouterBalance& args) {
  return moves({args.counts, args.score_sums, args.score_grad, args.step_counts, args.step_counts});
}

OpCost cost_of(const RouterBackward& args) {
  return moves({args.logits, args.experts, args.d_probs, args.d_logits});
}

OpCost cost_of(const RouterBiasUpdate& args) {
  return moves({args.bias, args.counts, args.bias});
}

OpCost cost_of(const ExpertRows& args) {
  return moves({args.experts, args.offsets, args.row_of, args.source});
}

OpCost cost_of(const TokenRanks& args) {
  return moves({args.row_of, args.ranks});
}

OpCost cost_of(const TokenSlots& args) {
  return moves({args.row_of, args.token_row_of, args.slots});
}

OpCost cost_of(const DispatchRows& args) {
  return moves({args.segments, args.source, args.row_of, args.slots, args.token_source, args.token_rows});
}

OpCost cost_of(const GatherValues& args) {
  return moves({args.index, args.out, args.out});
}

OpCost cost_of(const Permute& args) {
  return moves({args.x, args.source, args.rows});
}

OpCost cost_of(const Unpermute& args) {
  return moves({args.rows, args.row_of, args.addend, args.y});
}

OpCost cost_of(const LimitExperts& args) {
  return moves({args.probs, args.source, args.kept});
}

OpCost cost_of(const ExpertGateBackward& args) {
  return moves({args.addend, args.dy, args.d_addend});
}

OpCost cost_of(const ExpertActivation& args) {
  if (args.y_fp8.wants_data()) return moves({args.x, args.source}, args.y_fp8);
  if (args.y_groups.wants_data()) return moves({args.x, args.source}, args.y_groups);
  return moves({args.x, args.source, args.y});
}

OpCost cost_of(const ExpertActivationBackward& args) {
  if (args.dx_fp8.wants_data()) return moves({args.x, args.source, args.dy}, args.dx_fp8);
  if (args.dx_groups.wants_data()) return moves({args.x, args.source, args.dy}, args.dx_groups);
  return moves({args.x, args.source, args.dy, args.dx});
}

/// Current scales need the values twice.
OpCost cost_of(const QuantizeExperts& args) {
  OpCost cost = moves({args.x, args.source}, args.out);
  if (args.out.requantize.current_scale != nullptr) cost.bytes += tensor_bytes(args.x);
  return cost;
}

OpCost cost_of(const CountQuantizedExperts& args) {
  return moves({args.x, args.source, args.rowwise ? args.rowwise : args.columnwise});
}

OpCost cost_of(const SentRanges& args) {
  return moves({args.counts, args.ranges});
}

OpCost cost_of(const SentAmax& args) {
  return moves({args.x, args.row_of});
}

OpCost cost_of(const FinalizeExpertScales& args) {
  return moves({args.gathered, args.amax, args.scale});
}

/// Copies of a token are read from the cache.
OpCost cost_of(const QuantizeSent& args) {
  OpCost cost = moves({args.x, args.source});
  cost.bytes += static_cast<double>(args.source.numel() * args.x.cols());
  return cost;
}

OpCost cost_of(const OrderReceived& args) {
  return moves({args.x, args.source, args.rowwise, args.columnwise});
}

OpCost cost_of(const CountSent& args) {
  return moves({args.counts});
}

/// Only the device knows how many rows are used: at most all of them.
OpCost cost_of(const GroupedGemm& args) {
  OpCost cost = moves({args.a.values, args.b.values, args.out});
  if (args.accumulate) cost.bytes += tensor_bytes(args.out);
  cost.flops = 2.0 * static_cast<double>(args.a.values.numel()) * static_cast<double>(args.out.cols());
  return cost;
}

OpCost cost_of(const GroupedWgrad& args) {
  OpCost cost = moves({args.a.values, args.b.values, args.out});
  if (args.accumulate) cost.bytes += tensor_bytes(args.out);
  cost.flops = 2.0 * static_cast<double>(args.a.values.numel()) * static_cast<double>(args.out.cols());
  return cost;
}

template <class Args>
bool found(const std::any& args, OpCost& cost) {
  const auto* typed = std::any_cast<Args>(&args);
  if (typed != nullptr) cost = cost_of(*typed);
  return typed != nullptr;
}

template <class... Args>
bool found_among(const std::any& args, OpCost& cost) {
  return (found<Args>(args, cost) || ...);
}

}  // namespace

OpCost op_cost(const std::any& args) {
  OpCost cost;
  const bool known =
      found_among<ActivationForward, ActivationBackward, AdamW, AttentionForward, AttentionBackward,
                  AttentionDecode, CacheAppend, ClipCoefficient, ColumnChunks, CopyBlock, RowNumbers,
                  RowOrder, CrossEntropy, CrossEntropyStatistics, CrossEntropyFromStatistics, CurrentScale,
                  DelayedScaleUpdate, Dropout, EmbeddingForward, EmbeddingBackward, RecordCurrentScale, Gemm,
                  GemmActivationForward, GemmActivationBackward, MuonCombine, MuonMomentum, MuonNormalize,
                  MuonPlace, MuonUpdate, NormForward, NormBackward, CurrentScales, ParamSplit, QkNormForward,
                  QkNormBackward, Quantize, QuantizeGroups, QuantizeMx, QuantizeNvfp4, Rope, UniformNoise,
                  ZeroGranules>(args, cost) ||
      found_among<CountQuantizedExperts, CountSent, FinalizeExpertScales, OrderReceived, QuantizeSent,
                  SentAmax, SentRanges>(args, cost) ||
      found_among<DispatchRows, ExpertActivation, ExpertActivationBackward, ExpertGateBackward, ExpertRows,
                  GatherValues, GroupedGemm, GroupedWgrad, LimitExperts, Permute, QuantizeExperts,
                  RouterBackward, RouterBalance, RouterBiasUpdate, RouterForward, RouterGemm,
                  RouterGemmBackward, RouterStatistics, TokenRanks, TokenSlots, Unpermute>(args, cost);
  TE_CHECK(known, "cost/op_cost.cpp has no cost for an op with arguments {}", args.type().name());
  return cost;
}

OpCost op_cost(const OpCall& call) {
  return call.args.has_value() ? op_cost(call.args) : call.cost;
}

}  // namespace te::cost
