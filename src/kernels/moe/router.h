// Router of a mixture of experts: selects top-k of E experts for each token and computes their probabilities, the
// auxiliary losses and statistics. All arithmetic is FP32 with fixed orders of summation, whatever the precision of the
// GEMMs, so runs in BF16 and FP8 have the same router.
//
//   logits [T, E] = x W^T                                router_gemm.h
//   scores        = softmax(logits) or sigmoid(logits)
//   experts       = the topk experts with the largest scores + bias; the first of equal ones
//   probs         = scores of the selected experts, optionally divided by their sum, times scaling
// Normalized softmax probabilities equal a softmax over the selected logits only (Mixtral).
//
// Group-limited selection (DeepSeek-V2, arXiv 2405.04434): the experts form `groups` equal groups. Only
// experts of the group_topk groups with the largest sums of their topk / group_topk largest scores + bias are
// candidates.
//
// The bias is that of balancing without auxiliary loss (Wang et al., arXiv 2408.15664). It has no gradient.
#pragma once

#include <cstdint>

#include "core/choices.h"
#include "core/device.h"
#include "core/targets.h"
#include "core/tensor.h"

namespace te::kernels {

using te::BalanceScope;
using te::RouterScore;

constexpr int64_t kMaxExperts = 1024;

struct RouterRule {
  RouterScore score = RouterScore::softmax;
  int64_t topk = 1;
  bool normalize = true;  ///< the probabilities of a token sum to `scaling`
  float scaling = 1.0f;
  int64_t groups = 1, group_topk = 1;  ///< group_topk divides topk
  /// Token t selects the experts (t + slot * (E / topk)) % E instead: equally often if E divides T.
  bool in_turn = false;
};

struct RouterForward {
  RouterRule rule;
  Tensor logits;   ///< [T, E] fp32
  Tensor bias;     ///< optional [E] fp32, bf16 or fp16
  Tensor targets;  ///< optional i32 [T]: kPaddingTarget selects no expert and is not in statistics
  Tensor experts;  ///< out i32 [T, topk], the largest score + bias first; -1 for padding
  Tensor probs;    ///< out fp32 [T, topk]; 0 for padding
};
void router_forward(const Context& context, const RouterForward& args);

/// Of a sequence's tokens: the sums of logsumexp(logits)^2 and of the entropy of the scores, and their number.
constexpr int kTokenSums = 3;
/// Sums over the tokens of each sequence, without padding. `scores` of a token sum to 1: sigmoid scores are divided by
/// their sum.
struct RouterStatistics {
  RouterScore score = RouterScore::softmax;
  Tensor logits;      ///< [T, E] fp32, T / sequences consecutive tokens per sequence
  Tensor experts;     ///< i32 [T, topk] of router_forward()
  Tensor counts;      ///< out i32 [sequences, E]: tokens of the sequence that selected the expert
  Tensor score_sums;  ///< out fp32 [sequences, E]: sum of the scores
  Tensor token_sums;  ///< out fp32 [sequences, kTokenSums]
  Tensor scratch;     ///< fp32 [router_statistics_scratch(T, sequences, E)]
};
void router_statistics(const Context& context, const RouterStatistics& args);

/// Number of parts of each sequence over which a GPU sums statistics.
int64_t router_statistics_parts(int64_t length, int64_t sequences);
/// Elements of RouterStatistics::scratch.
int64_t router_statistics_scratch(int64_t tokens, int64_t sequences, int64_t experts);

/// Statistics of a layer over the microbatches of a step: balance loss times tokens, sums of logsumexp(logits)^2 and of
/// the entropy over the tokens, microbatches, tokens, LimitExperts::dropped.
constexpr int kRouterSums = 7;
constexpr int kRouterDropped = 5;

/// Load-balancing loss (Shazeer et al., arXiv 1701.06538; Fedus et al., arXiv 2101.03961), as in Megatron-LM:
///   E * sum over experts of (share of the selections that went to the expert) * (mean score)
/// of the microbatch (all sequences together), of each sequence (then their mean, weighted by tokens), or with the
/// shares of all microbatches of the step up to this one.
struct RouterBalance {
  BalanceScope scope = BalanceScope::microbatch;
  int64_t topk = 1;  ///< selections per token
  /// Of router_statistics(). With scope `global` counts may include other ranks' tokens.
  Tensor counts, score_sums, token_sums;
  Tensor score_grad;   ///< out fp32 [sequences, E]: gradient of loss * tokens by each token's scores
  Tensor step_counts;  ///< i32 [E]: += counts
  Tensor step_sums;    ///< fp32 [kRouterSums]: += this microbatch's
};
void router_balance(const Context& context, const RouterBalance& args);

struct RouterBackward {
  RouterRule rule;
  Tensor logits, experts;  ///< of the forward pass
  Tensor d_probs;          ///< fp32 [T, topk]
  Tensor row_of;           ///< optional i32 [T, topk]: a negative one means that d_probs is 0 (permute.h)
  Tensor score_grad;       ///< optional fp32 [sequences, E], see RouterBalance
  float balance_weight = 0.0f;  ///< factor of score_grad
  float z_weight = 0.0f;        ///< gradient of z_weight * sum over tokens of logsumexp(logits)^2
  Tensor d_logits;              ///< out [T, E] fp32; 0 for padding
};
void router_backward(const Context& context, const RouterBackward& args);

/// bias += rate * sign(mean count - count), after a step. `counts`: i32 [E] over the global batch.
struct RouterBiasUpdate {
  Tensor bias;        ///< fp32 [n]: of the experts [first, first + n)
  int64_t first = 0;  ///< ranks may have parts of the bias
  Tensor counts;      ///< i32 [E]
  float rate = 0.0f;
  const int32_t* skip = nullptr;  ///< *skip != 0 (device): no update
};
void router_bias_update(const Context& context, const RouterBiasUpdate& args);

}  // namespace te::kernels
