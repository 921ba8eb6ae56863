// Checks, dispatch and CPU reference of attention against a cache.
#include "kernels/attention/decode.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "core/float_types.h"
#include "kernels/attention/decode_cuda.h"
#include "kernels/common/checks.h"
#include "kernels/common/exp_cpu.h"
#include "kernels/rope/rope.h"

namespace te::kernels {
namespace {

constexpr int64_t kMaxHeadDimCuda = 256;

/// The cache's dimensions by name.
struct CacheSizes {
  explicit CacheSizes(const KeyValueCache& cache)
      : batch(cache.k.dim(0)), length(cache.k.dim(1)), groups(cache.k.dim(2)), dim(cache.k.dim(3)) {}
  int64_t place(int64_t sequence, int64_t position) const {
    return (sequence * length + position) * groups * dim;
  }
  int64_t batch, length, groups, dim;
};

int64_t heads_of(const Tensor& qkv, const CacheSizes& sizes) {
  return qkv.cols() / sizes.dim - 2 * sizes.groups;
}

void check_common(const Context& context, const char* op, const Tensor& qkv, const Tensor& sequences,
                  const Tensor& positions, const KeyValueCache& cache) {
  check_high_precision(op, "qkv", qkv);
  check_dtype(op, "cache.k", cache.k, qkv.dtype);
  check_dtype(op, "cache.v", cache.v, qkv.dtype);
  TE_CHECK(cache.k.shape.rank() == 4, "{}: cache.k has shape {}, must be [batch, length, groups, head_dim]",
           op, cache.k.shape.str());
  check_shape(op, "cache.v", cache.v, cache.k.shape);
  const CacheSizes sizes(cache);
  const char* rule = decode_unsupported(context.device(), sizes.dim);
  TE_CHECK(rule[0] == '\0', "{}: {}", op, rule);
  const int64_t heads = heads_of(qkv, sizes);
  TE_CHECK(qkv.cols() % sizes.dim == 0 && heads > 0 && heads % sizes.groups == 0,
           "{}: qkv has {} columns, but needs (heads + 2 * groups {}) * head_dim {}, with heads a multiple "
           "of groups",
           op, qkv.cols(), sizes.groups, sizes.dim);
  check_tensor(op, "sequences", sequences, DType::i32, {qkv.rows()});
  check_tensor(op, "positions", positions, DType::i32, {qkv.rows()});
  if (context.is_cuda()) return;
  for (int64_t r = 0; r < qkv.rows(); ++r) {
    const int32_t sequence = sequences.as<int32_t>()[r], position = positions.as<int32_t>()[r];
    TE_CHECK(sequence >= 0 && sequence < sizes.batch && position >= 0 && position < sizes.length,
             "{}: row {} is at position {} of sequence {}, outside the cache {}", op, r, position, sequence,
             cache.k.shape.str());
  }
}

template <class T>
void append_cpu(const CacheAppend& args) {
  const CacheSizes sizes(args.cache);
  const int64_t width = sizes.groups * sizes.dim, first_key = heads_of(args.qkv, sizes) * sizes.dim;
#pragma omp parallel for
  for (int64_t r = 0; r < args.qkv.rows(); ++r) {
    const T* key = args.qkv.as<T>() + r * args.qkv.cols() + first_key;
    const int64_t place = sizes.place(args.sequences.as<int32_t>()[r], args.positions.as<int32_t>()[r]);
    std::copy_n(key, width, args.cache.k.as<T>() + place);
    std::copy_n(key + width, width, args.cache.v.as<T>() + place);
  }
}

/// Attention of one query: softmax(q . k * scale) v, in two passes over the scores.
template <class T>
void attend(const T* query, const T* keys, const T* values, int64_t count, int64_t stride, int64_t dim,
            float scale, T* out, std::vector<float>& scores, std::vector<float>& sum) {
  scores.resize(static_cast<size_t>(count));
  float largest = -std::numeric_limits<float>::infinity();
  for (int64_t j = 0; j < count; ++j) {
    float dot = 0.0f;
    for (int64_t d = 0; d < dim; ++d) dot += to_float(query[d]) * to_float(keys[j * stride + d]);
    scores[static_cast<size_t>(j)] = dot * scale;
    largest = std::max(largest, dot * scale);
  }
  sum.assign(static_cast<size_t>(dim), 0.0f);
  float total = 0.0f;
  for (int64_t j = 0; j < count; ++j) {
    const float p = exp_nonpositive(scores[static_cast<size_t>(j)] - largest);
    total += p;
    for (int64_t d = 0; d < dim; ++d) sum[static_cast<size_t>(d)] += p * to_float(values[j * stride + d]);
  }
  for (int64_t d = 0; d < dim; ++d) out[d] = from_float<T>(sum[static_cast<size_t>(d)] / total);
}

template <class T>
void decode_cpu(const AttentionDecode& args) {
  const CacheSizes sizes(args.cache);
  const int64_t heads = heads_of(args.qkv, sizes), per_group = heads / sizes.groups;
#pragma omp parallel
  {
    std::vector<float> scores, sum;
#pragma omp for collapse(2) schedule(dynamic)
    for (int64_t r = 0; r < args.qkv.rows(); ++r) {
      for (int64_t head = 0; head < heads; ++head) {
        const int64_t count = args.positions.as<int32_t>()[r] + 1;
        const int64_t begin = args.window == 0 ? 0 : std::max<int64_t>(count - args.window, 0);
        const int64_t first =
            sizes.place(args.sequences.as<int32_t>()[r], begin) + head / per_group * sizes.dim;
        attend(args.qkv.as<T>() + r * args.qkv.cols() + head * sizes.dim, args.cache.k.as<T>() + first,
               args.cache.v.as<T>() + first, count - begin, sizes.groups * sizes.dim, sizes.dim,
               args.softmax_scale, args.o.as<T>() + (r * heads + head) * sizes.dim, scores, sum);
      }
    }
  }
}

}  // namespace

void cache_append(const Context& context, const CacheAppend& args) {
  check_common(context, "cache_append", args.qkv, args.sequences, args.positions, args.cache);
  if (args.qkv.rows() == 0) return;
  TE_DISPATCH_CUDA(context, cache_append, args);
  visit_high_precision(args.qkv.dtype, [&](auto zero) { append_cpu<decltype(zero)>(args); });
}

namespace {

void check_decode(const Context& context, const AttentionDecode& args) {
  constexpr const char* op = "attention_decode";
  check_common(context, op, args.qkv, args.sequences, args.positions, args.cache);
  const CacheSizes sizes(args.cache);
  TE_CHECK(args.window >= 0, "{}: window {} must not be negative", op, args.window);
  check_tensor(op, "o", args.o, args.qkv.dtype, {args.qkv.rows(), heads_of(args.qkv, sizes) * sizes.dim});
}

}  // namespace

void attention_decode(const Context& context, const AttentionDecode& args) {
  check_decode(context, args);
  if (args.qkv.rows() == 0) return;
  TE_DISPATCH_CUDA(context, attention_decode, args);
  visit_high_precision(args.qkv.dtype, [&](auto zero) { decode_cpu<decltype(zero)>(args); });
}

void attention_step(const Context& context, const AttentionStep& args) {
  const AttentionDecode& decode = args.decode;
  check_decode(context, decode);
  if (decode.qkv.rows() == 0) return;
#ifdef TE_WITH_CUDA
  if (context.is_cuda() && cuda::attention_step(context, args)) return;
#endif
  const CacheSizes sizes(decode.cache);
  if (args.cos)
    rope(context, {.qkv = decode.qkv,
                   .cos = args.cos,
                   .sin = args.sin,
                   .seq = args.cos.rows(),
                   .num_heads = heads_of(decode.qkv, sizes),
                   .num_query_groups = sizes.groups,
                   .head_dim = sizes.dim,
                   .positions = decode.positions});
  cache_append(context, {.qkv = decode.qkv,
                         .sequences = decode.sequences,
                         .positions = decode.positions,
                         .cache = decode.cache});
  attention_decode(context, decode);
}

const char* decode_unsupported(DeviceKind device, int64_t head_dim) {
  if (head_dim <= 0) return "head_dim must be positive";
  if (device == DeviceKind::cuda && head_dim > kMaxHeadDimCuda)
    return "attention against a cache on a GPU needs a head_dim of at most 256";
  return "";
}

}  // namespace te::kernels
