// Router on the GPU. A warp processes one token, with its scores in shared memory; sums over experts are sums of the
// lanes' sums in a fixed order.
#include "kernels/activation/activation_device.cuh"
#include "kernels/common/cuda_common.cuh"
#include "kernels/moe/moe_cuda.h"
#include "kernels/moe/router_math.h"

namespace te::kernels::cuda {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * kWarpSize;
constexpr int kPartWarps = 8, kPartThreads = kPartWarps * kWarpSize;
constexpr int kPerLane = kMaxExperts / kWarpSize;

/// Writes one token's scores, in `scores` of the warp. Returns logsumexp(logits).
__device__ float warp_scores(const float* logits, int experts, RouterScore score, float* scores) {
  const int lane = threadIdx.x % kWarpSize;
  float largest = -INFINITY, sum = 0.0f;
  for (int e = lane; e < experts; e += kWarpSize) largest = fmaxf(largest, logits[e]);
  largest = warp_max(largest);
  for (int e = lane; e < experts; e += kWarpSize) sum += scores[e] = expf(logits[e] - largest);
  sum = warp_sum(sum);
  for (int e = lane; e < experts; e += kWarpSize)
    scores[e] = score == RouterScore::softmax ? scores[e] / sum : sigmoid<float>(logits[e]);
  __syncwarp();
  return largest + logf(sum);
}

/// The first candidate in the order of selection, on all lanes.
__device__ int warp_first(const float* key, const uint8_t* candidate, int count) {
  const int lane = threadIdx.x % kWarpSize;
  int best = -1;
  for (int i = lane; i < count; i += kWarpSize)
    if (candidate[i] != 0 && (best < 0 || precedes(key[i], i, key[best], best))) best = i;
#pragma unroll
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
    const int other = __shfl_xor_sync(kAllLanes, best, offset);
    if (other >= 0 && (best < 0 || precedes(key[other], other, key[best], best))) best = other;
  }
  return best;
}

/// Marks the experts of the best groups as candidates. `sums`: [groups], `taken`: [groups].
__device__ void warp_groups(const RouterRule& rule, int experts, const float* key, uint8_t* candidate,
                            float* sums, uint8_t* taken) {
  const int lane = threadIdx.x % kWarpSize, groups = static_cast<int>(rule.groups), size = experts / groups;
  for (int e = lane; e < experts; e += kWarpSize) candidate[e] = groups == 1 ? 1 : 0;
  __syncwarp();
  if (groups == 1) return;
  const auto key_of = [key](int i) { return key[i]; };
  for (int g = lane; g < groups; g += kWarpSize) {
    sums[g] = sum_of_largest(key_of, g * size, (g + 1) * size, static_cast<int>(rule.topk / rule.group_topk));
    taken[g] = 1;
  }
  __syncwarp();
  for (int n = 0; n < rule.group_topk; ++n) {
    const int g = warp_first(sums, taken, groups);
    __syncwarp();
    if (lane == 0) taken[g] = 0;
    for (int i = lane; i < size; i += kWarpSize) candidate[g * size + i] = 1;
    __syncwarp();
  }
}

/// Shared memory of a warp. No larger than its experts need: a token takes many steps, so many warps must be resident.
struct WarpMemory {
  float *scores, *key, *sums;
  uint8_t *candidate, *taken;

  static __host__ __device__ size_t bytes(int experts) {
    const auto count = static_cast<size_t>(experts);
    return (count * (3 * sizeof(float) + 2) + 15) / 16 * 16;
  }
  __device__ WarpMemory(char* block, int experts) {
    scores = reinterpret_cast<float*>(block + threadIdx.x / kWarpSize * bytes(experts));
    key = scores + experts, sums = key + experts;
    candidate = reinterpret_cast<uint8_t*>(sums + experts), taken = candidate + experts;
  }
};

template <class Bias>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(RouterRule rule, const float* logits, const Bias* bias, const int32_t* targets,
                   int32_t* selected, float* probs, int64_t tokens, int experts) {
  extern __shared__ __align__(16) char memory[];
  const WarpMemory shared(memory, experts);
  const int lane = threadIdx.x % kWarpSize, topk = static_cast<int>(rule.topk);
  const int64_t t = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpSize;
  if (t >= tokens) return;
  if (targets != nullptr && targets[t] == kPaddingTarget) {
    for (int slot = lane; slot < topk; slot += kWarpSize)
      selected[t * topk + slot] = -1, probs[t * topk + slot] = 0.0f;
    return;
  }
  warp_scores(logits + t * experts, experts, rule.score, shared.scores);
  for (int e = lane; e < experts; e += kWarpSize)
    shared.key[e] = shared.scores[e] + (bias != nullptr ? load_float(bias + e) : 0.0f);
  __syncwarp();
  warp_groups(rule, experts, shared.key, shared.candidate, shared.sums, shared.taken);
  float sum = kScoreEpsilon;
  for (int slot = 0; slot < topk; ++slot) {
    const int e = rule.in_turn ? static_cast<int>((t + slot * (experts / topk)) % experts)
                               : warp_first(shared.key, shared.candidate, experts);
    __syncwarp();
    if (lane == 0) {
      shared.candidate[e] = 0;
      selected[t * topk + slot] = e;
      probs[t * topk + slot] = shared.scores[e];
    }
    sum += shared.scores[e];
    __syncwarp();
  }
  const float factor = rule.normalize ? rule.scaling / sum : rule.scaling;
  for (int slot = lane; slot < topk; slot += kWarpSize) probs[t * topk + slot] *= factor;
}

/// Sums over the tokens of a part of a sequence, of [sequences * parts] in memory: the scores of each expert, its
/// selections (integers), the squares and the entropies.
struct PartSums {
  float* data;
  int experts;
  __device__ float* scores(int64_t part) const { return data + part * (2 * experts + kTokenSums); }
  __device__ int32_t* selections(int64_t part) const {
    return reinterpret_cast<int32_t*>(scores(part) + experts);
  }
  __device__ float* of_tokens(int64_t part) const { return scores(part) + 2 * experts; }
};

/// A block processes part blockIdx.y of sequence blockIdx.x: each warp adds its tokens, then the sums of the warps are
/// added in order.
__global__ void __launch_bounds__(kPartThreads)
    statistics_kernel(RouterScore score, const float* logits, const int32_t* selected, PartSums out,
                      int64_t length, int topk) {
  extern __shared__ float warp_sums[];  // [warps, experts]
  __shared__ int32_t selections[kMaxExperts];
  __shared__ float squares_of[kPartWarps], entropies_of[kPartWarps], tokens_of[kPartWarps];
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize, experts = out.experts;
  const int64_t start = blockIdx.x * length, per_part = (length + gridDim.y - 1) / gridDim.y;
  const int64_t first = start + blockIdx.y * per_part, end = min(start + length, first + per_part);
  for (int e = threadIdx.x; e < experts; e += kPartThreads) selections[e] = 0;
  __syncthreads();
  float sums[kPerLane] = {}, squares = 0.0f, entropies = 0.0f, tokens = 0.0f;
  for (int64_t t = first + warp; t < end; t += kPartWarps) {
    if (selected[t * topk] < 0) continue;  // padding
    tokens += 1.0f;
    const float* const row = logits + t * experts;
    float largest = -INFINITY, sum = 0.0f, total = 0.0f;
    for (int e = lane; e < experts; e += kWarpSize) largest = fmaxf(largest, row[e]);
    largest = warp_max(largest);
    for (int e = lane; e < experts; e += kWarpSize) {
      sum += expf(row[e] - largest);
      total += score == RouterScore::sigmoid ? sigmoid<float>(row[e]) : 0.0f;
    }
    sum = warp_sum(sum), total = warp_sum(total);
    const float lse = largest + logf(sum);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (i * kWarpSize >= experts) break;
      const int e = i * kWarpSize + lane;
      if (e >= experts) continue;
      const float share =
          score == RouterScore::softmax ? expf(row[e] - largest) / sum : sigmoid<float>(row[e]) / total;
      sums[i] += share;
      if (share > 0.0f) entropies -= share * logf(share);
    }
    squares += lse * lse;
    for (int slot = lane; slot < topk; slot += kWarpSize)
      atomicAdd(&selections[selected[t * topk + slot]], 1);
  }
  entropies = warp_sum(entropies);
  if (lane == 0) squares_of[warp] = squares, entropies_of[warp] = entropies, tokens_of[warp] = tokens;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i)
    if (i * kWarpSize + lane < experts) warp_sums[warp * experts + i * kWarpSize + lane] = sums[i];
  __syncthreads();
  const int64_t part = int64_t{blockIdx.x} * gridDim.y + blockIdx.y;
  for (int e = threadIdx.x; e < experts; e += kPartThreads) {
    float sum = 0.0f;
    for (int w = 0; w < kPartWarps; ++w) sum += warp_sums[w * experts + e];
    out.scores(part)[e] = sum;
    out.selections(part)[e] = selections[e];
  }
  if (threadIdx.x != 0) return;
  squares = entropies = tokens = 0.0f;
  for (int w = 0; w < kPartWarps; ++w)
    squares += squares_of[w], entropies += entropies_of[w], tokens += tokens_of[w];
  out.of_tokens(part)[0] = squares, out.of_tokens(part)[1] = entropies, out.of_tokens(part)[2] = tokens;
}

/// Adds the parts of a sequence (blockIdx.x) in order, one thread per expert; the first one also the tokens' sums.
__global__ void __launch_bounds__(kThreads)
    add_part_sums_kernel(PartSums from, int parts, int32_t* counts, float* score_sums, float* token_sums) {
  const int e = static_cast<int>(blockIdx.y * kThreads + threadIdx.x), experts = from.experts;
  const int64_t sequence = blockIdx.x, first = sequence * parts;
  if (e < experts) {
    float sum = 0.0f;
    int32_t count = 0;
    for (int p = 0; p < parts; ++p) sum += from.scores(first + p)[e], count += from.selections(first + p)[e];
    score_sums[sequence * experts + e] = sum;
    counts[sequence * experts + e] = count;
  }
  if (e >= kTokenSums) return;
  float sum = 0.0f;
  for (int p = 0; p < parts; ++p) sum += from.of_tokens(first + p)[e];
  token_sums[sequence * kTokenSums + e] = sum;
}

__global__ void balance_kernel(BalanceScope scope, int topk, int sequences, int experts,
                               const int32_t* counts, const float* score_sums, const float* token_sums,
                               float* score_grad, int32_t* step_counts, float* step_sums) {
  __shared__ float shared[32];
  float squares = 0.0f, entropies = 0.0f, tokens = 0.0f, of_step = 0.0f;
  for (int s = 0; s < sequences; ++s) {
    const float* const sums = token_sums + s * kTokenSums;
    squares += sums[0], entropies += sums[1], tokens += sums[2];
  }
  for (int e = threadIdx.x; e < experts; e += blockDim.x) {
    int32_t all = 0;
    for (int s = 0; s < sequences; ++s) all += counts[s * experts + e];
    step_counts[e] += all;
    of_step += static_cast<float>(step_counts[e]);
  }
  of_step = block_sum(of_step, shared);
  float loss = 0.0f;
  for (int e = threadIdx.x; e < experts; e += blockDim.x) {
    int32_t all = 0;
    for (int s = 0; s < sequences; ++s) all += counts[s * experts + e];
    for (int s = 0; s < sequences; ++s) {
      const bool own = scope == BalanceScope::sequence, global = scope == BalanceScope::global;
      const int32_t selected = own ? counts[s * experts + e] : global ? step_counts[e] : all;
      const float of_tokens = own ? token_sums[s * kTokenSums + 2] : tokens;
      const float selections = fmaxf(global ? of_step : of_tokens * static_cast<float>(topk), 1.0f);
      const float grad = static_cast<float>(experts) * (static_cast<float>(selected) / selections);
      score_grad[s * experts + e] = grad;
      loss += grad * score_sums[s * experts + e];
    }
  }
  loss = block_sum(loss, shared);
  if (threadIdx.x != 0) return;
  step_sums[0] += loss;
  step_sums[1] += squares;
  step_sums[2] += entropies;
  step_sums[3] += 1.0f;
  step_sums[4] += tokens;
}

__global__ void __launch_bounds__(kThreads)
    backward_kernel(RouterRule rule, const float* logits, const int32_t* selected, const float* d_probs,
                    const int32_t* row_of, const float* score_grad, int64_t length, float balance_weight,
                    float z_weight, float* d_logits, int64_t tokens, int experts) {
  extern __shared__ __align__(16) char memory[];
  const WarpMemory shared(memory, experts);
  float *const scores = shared.scores, *const d_scores = shared.key;
  const int lane = threadIdx.x % kWarpSize, topk = static_cast<int>(rule.topk);
  const int64_t t = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpSize;
  if (t >= tokens) return;
  if (selected[t * topk] < 0) {  // padding
    for (int e = lane; e < experts; e += kWarpSize) d_logits[t * experts + e] = 0.0f;
    return;
  }
  const bool softmax = rule.score == RouterScore::softmax;
  const float lse = warp_scores(logits + t * experts, experts, rule.score, scores);
  for (int e = lane; e < experts; e += kWarpSize) d_scores[e] = 0.0f;
  const auto d_prob = [&](int slot) {
    const int64_t i = t * topk + slot;
    return row_of != nullptr && row_of[i] < 0 ? 0.0f : d_probs[i];
  };
  float sum = kScoreEpsilon, along = 0.0f;
  for (int slot = 0; slot < topk; ++slot) {
    const float score = scores[selected[t * topk + slot]];
    sum += score;
    along += d_prob(slot) * score;
  }
  __syncwarp();
  for (int slot = lane; slot < topk; slot += kWarpSize)
    d_scores[selected[t * topk + slot]] =
        selected_score_gradient(rule.normalize, rule.scaling, d_prob(slot), sum, along);
  __syncwarp();
  if (score_grad != nullptr) {
    const float* const grad = score_grad + t / length * experts;
    float total = 1.0f, mean = 0.0f;
    if (!softmax) {
      total = 0.0f;
      for (int e = lane; e < experts; e += kWarpSize) total += scores[e], mean += grad[e] * scores[e];
      total = warp_sum(total), mean = warp_sum(mean) / total;
    }
    for (int e = lane; e < experts; e += kWarpSize)
      d_scores[e] += balance_weight * ((grad[e] - mean) / total);
    __syncwarp();
  }
  float inner = 0.0f;
  for (int e = lane; e < experts; e += kWarpSize) inner += d_scores[e] * scores[e];
  inner = warp_sum(inner);
  for (int e = lane; e < experts; e += kWarpSize) {
    const float s = scores[e], d = d_scores[e];
    const float through = softmax ? s * (d - inner) : d * s * (1.0f - s);
    d_logits[t * experts + e] = through + 2.0f * z_weight * lse * expf(logits[t * experts + e] - lse);
  }
}

__global__ void bias_kernel(float* bias, int first, int count, const int32_t* counts, int experts, float rate,
                            const int32_t* skip) {
  __shared__ float shared[32];
  if (skip != nullptr && *skip != 0) return;
  float sum = 0.0f;
  for (int e = threadIdx.x; e < experts; e += blockDim.x) sum += static_cast<float>(counts[e]);
  const float mean = block_sum(sum, shared) / static_cast<float>(experts);
  for (int i = threadIdx.x; i < count; i += blockDim.x)
    bias[i] = bias_step(bias[i], rate, mean, counts[first + i]);
}

}  // namespace

void router_forward(const Context& context, const RouterForward& a) {
  const int64_t tokens = a.logits.rows();
  const int experts = static_cast<int>(a.logits.cols());
  const size_t bytes = kWarps * WarpMemory::bytes(experts);
  visit_high_precision(a.bias ? a.bias.dtype : DType::f32, [&](auto zero) {
    using Bias = typename DeviceType<decltype(zero)>::type;
    allow_shared_memory(context, forward_kernel<Bias>, bytes);
    forward_kernel<<<ceil_div(tokens, kWarps), kThreads, bytes, cuda_stream(context)>>>(
        a.rule, a.logits.as<float>(), a.bias.as<Bias>(), a.targets.as<int32_t>(), a.experts.as<int32_t>(),
        a.probs.as<float>(), tokens, experts);
  });
  TE_CUDA_CHECK_LAUNCH();
}

void router_statistics(const Context& context, const RouterStatistics& a) {
  const int64_t sequences = a.counts.rows(), experts = a.logits.cols(), length = a.logits.rows() / sequences;
  const unsigned parts = static_cast<unsigned>(router_statistics_parts(length, sequences));
  const size_t bytes = static_cast<size_t>(experts) * kPartWarps * sizeof(float);
  const PartSums sums{a.scratch.as<float>(), static_cast<int>(experts)};
  statistics_kernel<<<dim3(static_cast<unsigned>(sequences), parts), kPartThreads, bytes,
                      cuda_stream(context)>>>(a.score, a.logits.as<float>(), a.experts.as<int32_t>(), sums,
                                              length, static_cast<int>(a.experts.cols()));
  TE_CUDA_CHECK_LAUNCH();
  add_part_sums_kernel<<<dim3(static_cast<unsigned>(sequences), ceil_div(experts, kThreads)), kThreads, 0,
                         cuda_stream(context)>>>(sums, static_cast<int>(parts), a.counts.as<int32_t>(),
                                                 a.score_sums.as<float>(), a.token_sums.as<float>());
  TE_CUDA_CHECK_LAUNCH();
}

void router_balance(const Context& context, const RouterBalance& a) {
  balance_kernel<<<1, 256, 0, cuda_stream(context)>>>(
      a.scope, static_cast<int>(a.topk), static_cast<int>(a.counts.rows()), static_cast<int>(a.counts.cols()),
      a.counts.as<int32_t>(), a.score_sums.as<float>(), a.token_sums.as<float>(), a.score_grad.as<float>(),
      a.step_counts.as<int32_t>(), a.step_sums.as<float>());
  TE_CUDA_CHECK_LAUNCH();
}

void router_backward(const Context& context, const RouterBackward& a) {
  const int64_t tokens = a.logits.rows();
  const int experts = static_cast<int>(a.logits.cols());
  const size_t bytes = kWarps * WarpMemory::bytes(experts);
  allow_shared_memory(context, backward_kernel, bytes);
  backward_kernel<<<ceil_div(tokens, kWarps), kThreads, bytes, cuda_stream(context)>>>(
      a.rule, a.logits.as<float>(), a.experts.as<int32_t>(), a.d_probs.as<float>(), a.row_of.as<int32_t>(),
      a.score_grad.as<float>(), a.score_grad ? tokens / a.score_grad.rows() : tokens, a.balance_weight,
      a.z_weight, a.d_logits.as<float>(), tokens, experts);
  TE_CUDA_CHECK_LAUNCH();
}

void router_bias_update(const Context& context, const RouterBiasUpdate& a) {
  bias_kernel<<<1, 256, 0, cuda_stream(context)>>>(a.bias.as<float>(), static_cast<int>(a.first),
                                                   static_cast<int>(a.bias.numel()), a.counts.as<int32_t>(),
                                                   static_cast<int>(a.counts.numel()), a.rate, a.skip);
  TE_CUDA_CHECK_LAUNCH();
}

}  // namespace te::kernels::cuda
