// Checks, dispatch and CPU reference of the router.
#include "kernels/moe/router.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/float_types.h"
#include "kernels/activation/activation_cpu.h"
#include "kernels/common/checks.h"
#include "kernels/gemm/sgemm_cpu.h"
#include "kernels/gemm/widen_cpu.h"
#include "kernels/moe/moe_cuda.h"
#include "kernels/moe/router_math.h"

namespace te::kernels {
namespace {

void check_router_rule(const char* op, const RouterRule& rule, int64_t experts) {
  TE_CHECK(experts > 0 && experts <= kMaxExperts, "{}: {} experts, must be 1 to {}", op, experts,
           kMaxExperts);
  TE_CHECK(rule.topk > 0 && rule.topk <= experts, "{}: topk {} must be 1 to the {} experts", op, rule.topk,
           experts);
  TE_CHECK(rule.groups > 0 && experts % rule.groups == 0 && rule.group_topk > 0 &&
               rule.group_topk <= rule.groups && rule.topk % rule.group_topk == 0 &&
               rule.topk <= rule.group_topk * (experts / rule.groups),
           "{}: topk {} in {} of {} groups of {} experts is not possible", op, rule.topk, rule.group_topk,
           rule.groups, experts);
}

void check_router_logits(const char* op, const Tensor& logits) {
  check_dtype(op, "logits", logits, DType::f32);
  TE_CHECK(logits.shape.rank() == 2, "{}: logits {} must be [tokens, experts]", op, logits.shape.str());
}

void check_selection(const char* op, const char* name, const Tensor& tensor, DType dtype, int64_t tokens,
                     int64_t topk) {
  check_tensor(op, name, tensor, dtype, {tokens, topk});
}

void check_sequences(const char* op, const Tensor& sums, int64_t tokens, int64_t experts) {
  check_dtype(op, "sums of scores", sums, DType::f32);
  TE_CHECK(sums.shape.rank() == 2 && sums.dim(1) == experts && tokens % sums.dim(0) == 0,
           "{}: sums {} are not [sequences, {}] of {} tokens", op, sums.shape.str(), experts, tokens);
}

/// Softmax or sigmoid of one token's logits. Returns logsumexp(logits).
float scores_of(const float* logits, int64_t count, RouterScore score, float* scores) {
  float largest = logits[0], sum = 0.0f;
  for (int64_t e = 1; e < count; ++e) largest = std::max(largest, logits[e]);
  for (int64_t e = 0; e < count; ++e) sum += scores[e] = std::exp(logits[e] - largest);
  for (int64_t e = 0; e < count; ++e)
    scores[e] = score == RouterScore::softmax ? scores[e] / sum : sigmoid_cpu(logits[e]);
  return largest + std::log(sum);
}

/// Selects experts of one token by `key`; `candidate` is a buffer of flags.
void select_experts(const RouterRule& rule, int64_t experts, const float* key, std::vector<char>& candidate,
                    int32_t* selected) {
  const auto key_of = [key](int i) { return key[i]; };
  const int size = static_cast<int>(experts / rule.groups);
  candidate.assign(static_cast<size_t>(experts), rule.groups == 1 ? 1 : 0);
  if (rule.groups > 1) {
    std::vector<float> sums(static_cast<size_t>(rule.groups));
    for (int g = 0; g < rule.groups; ++g)
      sums[static_cast<size_t>(g)] =
          sum_of_largest(key_of, g * size, (g + 1) * size, static_cast<int>(rule.topk / rule.group_topk));
    std::vector<char> taken(sums.size(), 0);
    for (int64_t n = 0; n < rule.group_topk; ++n) {
      const int g = first_of([&](int i) { return sums[static_cast<size_t>(i)]; },
                             [&](int i) { return taken[static_cast<size_t>(i)] == 0; }, 0,
                             static_cast<int>(rule.groups));
      taken[static_cast<size_t>(g)] = 1;
      std::fill_n(candidate.begin() + int64_t{g} * size, size, char{1});
    }
  }
  for (int64_t slot = 0; slot < rule.topk; ++slot) {
    const int e = first_of(
        key_of, [&](int i) { return candidate[static_cast<size_t>(i)] != 0; }, 0, static_cast<int>(experts));
    candidate[static_cast<size_t>(e)] = 0;
    selected[slot] = e;
  }
}

void router_forward_cpu(const RouterForward& a) {
  const int64_t tokens = a.logits.rows(), experts = a.logits.cols(), topk = a.rule.topk;
#pragma omp parallel for
  for (int64_t t = 0; t < tokens; ++t) {
    static thread_local std::vector<float> scores, key;
    static thread_local std::vector<char> candidate;
    scores.resize(static_cast<size_t>(experts));
    scores_of(a.logits.as<float>() + t * experts, experts, a.rule.score, scores.data());
    key = scores;
    if (a.bias)
      visit_high_precision(a.bias.dtype, [&](auto zero) {
        for (int64_t e = 0; e < experts; ++e)
          key[static_cast<size_t>(e)] += to_float(a.bias.as<decltype(zero)>()[e]);
      });
    int32_t* const selected = a.experts.as<int32_t>() + t * topk;
    if (a.targets && a.targets.as<int32_t>()[t] == kPaddingTarget) {
      std::fill_n(selected, topk, -1);
      std::fill_n(a.probs.as<float>() + t * topk, topk, 0.0f);
      continue;
    }
    if (a.rule.in_turn)
      for (int64_t i = 0; i < topk; ++i)
        selected[i] = static_cast<int32_t>((t + i * (experts / topk)) % experts);
    else
      select_experts(a.rule, experts, key.data(), candidate, selected);
    float sum = kScoreEpsilon;
    for (int64_t i = 0; i < topk; ++i) sum += scores[static_cast<size_t>(selected[i])];
    const float factor = a.rule.normalize ? a.rule.scaling / sum : a.rule.scaling;
    for (int64_t i = 0; i < topk; ++i)
      a.probs.as<float>()[t * topk + i] = scores[static_cast<size_t>(selected[i])] * factor;
  }
}

void router_statistics_cpu(const RouterStatistics& a) {
  const int64_t experts = a.logits.cols(), sequences = a.counts.rows(), topk = a.experts.cols();
  const int64_t length = a.logits.rows() / std::max<int64_t>(1, sequences);
#pragma omp parallel for
  for (int64_t s = 0; s < sequences; ++s) {
    std::vector<float> scores(static_cast<size_t>(experts));
    int32_t* const counts = a.counts.as<int32_t>() + s * experts;
    float* const sums = a.score_sums.as<float>() + s * experts;
    std::fill_n(counts, experts, 0);
    std::fill_n(sums, experts, 0.0f);
    float squares = 0.0f, entropies = 0.0f, tokens = 0.0f;
    for (int64_t t = s * length; t < (s + 1) * length; ++t) {
      if (a.experts.as<int32_t>()[t * topk] < 0) continue;
      tokens += 1.0f;
      const float lse = scores_of(a.logits.as<float>() + t * experts, experts, a.score, scores.data());
      float total = 1.0f, entropy = 0.0f;
      if (a.score == RouterScore::sigmoid) {
        total = 0.0f;
        for (const float score : scores) total += score;
      }
      for (int64_t e = 0; e < experts; ++e) {
        const float share = scores[static_cast<size_t>(e)] / total;
        sums[e] += share;
        if (share > 0.0f) entropy -= share * std::log(share);
      }
      squares += lse * lse;
      entropies += entropy;
      for (int64_t i = 0; i < topk; ++i) ++counts[a.experts.as<int32_t>()[t * topk + i]];
    }
    float* const token_sums = a.token_sums.as<float>() + s * kTokenSums;
    token_sums[0] = squares, token_sums[1] = entropies, token_sums[2] = tokens;
  }
}

void router_balance_cpu(const RouterBalance& a) {
  const int64_t sequences = a.counts.rows(), experts = a.counts.cols();
  const auto* counts = a.counts.as<int32_t>();
  auto* step_counts = a.step_counts.as<int32_t>();
  auto* step_sums = a.step_sums.as<float>();
  float squares = 0.0f, entropies = 0.0f, tokens = 0.0f, of_step = 0.0f;
  const float* const token_sums = a.token_sums.as<float>();
  for (int64_t s = 0; s < sequences; ++s) {
    squares += token_sums[s * kTokenSums];
    entropies += token_sums[s * kTokenSums + 1];
    tokens += token_sums[s * kTokenSums + 2];
  }
  std::vector<int32_t> all(static_cast<size_t>(experts), 0);
  for (int64_t e = 0; e < experts; ++e) {
    for (int64_t s = 0; s < sequences; ++s) all[static_cast<size_t>(e)] += counts[s * experts + e];
    step_counts[e] += all[static_cast<size_t>(e)];
    of_step += static_cast<float>(step_counts[e]);
  }
  float loss = 0.0f;
  for (int64_t e = 0; e < experts; ++e) {
    for (int64_t s = 0; s < sequences; ++s) {
      const bool own = a.scope == BalanceScope::sequence, global = a.scope == BalanceScope::global;
      const int32_t selected = own      ? counts[s * experts + e]
                               : global ? step_counts[e]
                                        : all[static_cast<size_t>(e)];
      const float of_tokens = own ? token_sums[s * kTokenSums + 2] : tokens;
      const float selections = std::max(global ? of_step : of_tokens * static_cast<float>(a.topk), 1.0f);
      const float grad = static_cast<float>(experts) * (static_cast<float>(selected) / selections);
      a.score_grad.as<float>()[s * experts + e] = grad;
      loss += grad * a.score_sums.as<float>()[s * experts + e];
    }
  }
  step_sums[0] += loss;
  step_sums[1] += squares;
  step_sums[2] += entropies;
  step_sums[3] += 1.0f;
  step_sums[4] += tokens;
}

/// d_scores += the gradient of the balance loss.
void add_balance(const RouterBackward& a, const float* grad, const std::vector<float>& scores,
                 std::vector<float>& d_scores) {
  float total = 1.0f, along = 0.0f;
  if (a.rule.score == RouterScore::sigmoid) {
    total = 0.0f;
    for (size_t e = 0; e < scores.size(); ++e) total += scores[e], along += grad[e] * scores[e];
    along /= total;
  }
  for (size_t e = 0; e < scores.size(); ++e) d_scores[e] += a.balance_weight * ((grad[e] - along) / total);
}

void router_backward_token(const RouterBackward& a, int64_t t, std::vector<float>& scores,
                           std::vector<float>& d_scores) {
  const int64_t experts = a.logits.cols(), topk = a.rule.topk;
  const float* const logits = a.logits.as<float>() + t * experts;
  const int32_t* const selected = a.experts.as<int32_t>() + t * topk;
  const auto d_prob = [&](int64_t i) {
    const bool dropped = a.row_of && a.row_of.as<int32_t>()[t * topk + i] < 0;
    return dropped ? 0.0f : a.d_probs.as<float>()[t * topk + i];
  };
  float* const d_logits = a.d_logits.as<float>() + t * experts;
  if (selected[0] < 0) {  // padding
    std::fill_n(d_logits, experts, 0.0f);
    return;
  }
  const float lse = scores_of(logits, experts, a.rule.score, scores.data());
  float sum = kScoreEpsilon, along = 0.0f;
  for (int64_t i = 0; i < topk; ++i) {
    const float score = scores[static_cast<size_t>(selected[i])];
    sum += score;
    along += d_prob(i) * score;
  }
  std::fill(d_scores.begin(), d_scores.end(), 0.0f);
  for (int64_t i = 0; i < topk; ++i)
    d_scores[static_cast<size_t>(selected[i])] =
        selected_score_gradient(a.rule.normalize, a.rule.scaling, d_prob(i), sum, along);
  if (a.score_grad) {
    const int64_t length = a.logits.rows() / a.score_grad.rows();
    add_balance(a, a.score_grad.as<float>() + t / length * experts, scores, d_scores);
  }
  float inner = 0.0f;
  for (size_t e = 0; e < scores.size(); ++e) inner += d_scores[e] * scores[e];
  for (int64_t e = 0; e < experts; ++e) {
    const float s = scores[static_cast<size_t>(e)], d = d_scores[static_cast<size_t>(e)];
    const float through = a.rule.score == RouterScore::softmax ? s * (d - inner) : d * s * (1.0f - s);
    d_logits[e] = through + 2.0f * a.z_weight * lse * std::exp(logits[e] - lse);
  }
}

}  // namespace

void router_forward(const Context& context, const RouterForward& a) {
  const char* op = "router_forward";
  check_router_logits(op, a.logits);
  check_router_rule(op, a.rule, a.logits.cols());
  if (a.bias) {
    check_high_precision(op, "bias", a.bias);
    check_shape(op, "bias", a.bias, {a.logits.cols()});
  }
  if (a.targets) check_tensor(op, "targets", a.targets, DType::i32, {a.logits.rows()});
  check_selection(op, "experts", a.experts, DType::i32, a.logits.rows(), a.rule.topk);
  check_selection(op, "probs", a.probs, DType::f32, a.logits.rows(), a.rule.topk);
  TE_DISPATCH_CUDA(context, router_forward, a);
  router_forward_cpu(a);
}

// At least 64 tokens per part, and about two blocks per SM of current GPUs.
int64_t router_statistics_parts(int64_t length, int64_t sequences) {
  return std::max<int64_t>(1, std::min(length / 64, (256 + sequences - 1) / sequences));
}

int64_t router_statistics_scratch(int64_t tokens, int64_t sequences, int64_t experts) {
  TE_CHECK(sequences > 0, "router_statistics: {} sequences", sequences);
  return sequences * router_statistics_parts(tokens / sequences, sequences) * (2 * experts + kTokenSums);
}

void router_statistics(const Context& context, const RouterStatistics& a) {
  const char* op = "router_statistics";
  check_router_logits(op, a.logits);
  const int64_t experts = a.logits.cols();
  TE_CHECK(experts <= kMaxExperts, "{}: {} experts, must be at most {}", op, experts, kMaxExperts);
  check_selection(op, "experts", a.experts, DType::i32, a.logits.rows(), a.experts.cols());
  check_sequences(op, a.score_sums, a.logits.rows(), experts);
  check_tensor(op, "counts", a.counts, DType::i32, a.score_sums.shape);
  check_tensor(op, "token_sums", a.token_sums, DType::f32, {a.counts.rows(), kTokenSums});
  check_dtype(op, "scratch", a.scratch, DType::f32);
  check_shape(op, "scratch", a.scratch,
              {router_statistics_scratch(a.logits.rows(), a.counts.rows(), experts)});
  TE_DISPATCH_CUDA(context, router_statistics, a);
  router_statistics_cpu(a);
}

void router_balance(const Context& context, const RouterBalance& a) {
  const char* op = "router_balance";
  const int64_t experts = a.counts.cols();
  check_tensor(op, "score_sums", a.score_sums, DType::f32, {a.counts.rows(), experts});
  check_tensor(op, "token_sums", a.token_sums, DType::f32, {a.counts.rows(), kTokenSums});
  check_tensor(op, "counts", a.counts, DType::i32, a.score_sums.shape);
  check_tensor(op, "score_grad", a.score_grad, DType::f32, a.counts.shape);
  check_tensor(op, "step_counts", a.step_counts, DType::i32, {experts});
  check_tensor(op, "step_sums", a.step_sums, DType::f32, {kRouterSums});
  TE_CHECK(a.topk > 0, "{}: topk {} must be positive", op, a.topk);
  TE_DISPATCH_CUDA(context, router_balance, a);
  router_balance_cpu(a);
}

void router_backward(const Context& context, const RouterBackward& a) {
  const char* op = "router_backward";
  check_router_logits(op, a.logits);
  const int64_t tokens = a.logits.rows(), experts = a.logits.cols();
  check_router_rule(op, a.rule, experts);
  check_selection(op, "experts", a.experts, DType::i32, tokens, a.rule.topk);
  check_selection(op, "d_probs", a.d_probs, DType::f32, tokens, a.rule.topk);
  if (a.row_of) check_selection(op, "row_of", a.row_of, DType::i32, tokens, a.rule.topk);
  if (a.score_grad) check_sequences(op, a.score_grad, tokens, experts);
  check_tensor(op, "d_logits", a.d_logits, DType::f32, a.logits.shape);
  TE_DISPATCH_CUDA(context, router_backward, a);
#pragma omp parallel for
  for (int64_t t = 0; t < tokens; ++t) {
    static thread_local std::vector<float> scores, d_scores;
    scores.resize(static_cast<size_t>(experts));
    d_scores.resize(static_cast<size_t>(experts));
    router_backward_token(a, t, scores, d_scores);
  }
}

void router_bias_update(const Context& context, const RouterBiasUpdate& a) {
  const char* op = "router_bias_update";
  check_dtype(op, "bias", a.bias, DType::f32);
  check_dtype(op, "counts", a.counts, DType::i32);
  const int64_t experts = a.counts.numel(), count = a.bias.numel();
  TE_CHECK(a.first >= 0 && a.first + count <= experts, "{}: {} experts from {} of {}", op, count, a.first,
           experts);
  TE_DISPATCH_CUDA(context, router_bias_update, a);
  if (a.skip != nullptr && *a.skip != 0) return;
  float mean = 0.0f;
  for (int64_t e = 0; e < experts; ++e) mean += static_cast<float>(a.counts.as<int32_t>()[e]);
  mean /= static_cast<float>(experts);
  for (int64_t i = 0; i < count; ++i) {
    float& bias = a.bias.as<float>()[i];
    bias = bias_step(bias, a.rate, mean, a.counts.as<int32_t>()[a.first + i]);
  }
}

}  // namespace te::kernels
