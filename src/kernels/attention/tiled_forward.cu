// Forward pass of tiled_attention.h. A block owns 64 queries of one head and iterates over the keys that they see, with
// the running maximum and denominator of Milakov and Gimelshein (arXiv 1805.02867). When the maximum grows, earlier
// sums are rescaled.
#include "kernels/attention/tiled_attention.h"
#include "kernels/attention/tiled_device.cuh"

namespace te::kernels::cuda {
namespace {

using namespace tiled;

template <class T>
struct ForwardParams {
  const T *qkv, *kv;
  T* o;
  float* lse;
  float scale;
  Layout layout;
  FirstKeys first_keys;
  Dropout dropout;
};

template <class G>
struct ForwardShared {
  float q[G::kBlockM * G::kStride];
  float other[G::kBlockN * G::kStride];  ///< keys, then values
  float weights[G::kBlockM * G::kWeightStride];
  uint8_t keep[G::kBlockM * G::kBlockN];
};

/// Softmax state of a thread's queries.
template <class G>
struct OnlineSoftmax {
  float largest[G::kRows], sum[G::kRows];
  int begin[G::kRows], end[G::kRows];  ///< range of keys that the query sees

  template <class T>
  __device__ __forceinline__ OnlineSoftmax(const ForwardParams<T>& p, int b, int first, int count) {
#pragma unroll
    for (int i = 0; i < G::kRows; ++i) {
      const int row = thread_y() + i * kSide, position = p.layout.position + first + row;
      const bool there = row < count;
      begin[i] = there ? p.first_keys.of(b, position) : 0;
      end[i] = there ? position + 1 : 0;
      largest[i] = -INFINITY, sum[i] = 0.0f;
    }
  }

  /// Converts the scores of keys from `key` on into unnormalized probabilities in `shared.weights`.
  __device__ __forceinline__ void take(const Dropout& dropout, float scale, int key,
                                       float (&s)[G::kRows][G::kCols], RowSums<G>& o,
                                       ForwardShared<G>& shared) {
#pragma unroll
    for (int i = 0; i < G::kRows; ++i) {
      const int row = thread_y() + i * kSide;
      float highest = largest[i];
#pragma unroll
      for (int j = 0; j < G::kCols; ++j) {
        const int at = key + thread_x() + j * kSide;
        s[i][j] = at >= begin[i] && at < end[i] ? s[i][j] * scale : -INFINITY;
        highest = fmaxf(highest, s[i][j]);
      }
      highest = side_max(highest);
      // A row that has seen no key yet has no sum to rescale.
      const float rescale = largest[i] == -INFINITY ? 1.0f : expf(largest[i] - highest);
      float total = 0.0f;
#pragma unroll
      for (int j = 0; j < G::kCols; ++j) {
        const int col = thread_x() + j * kSide, at = key + col;
        const float x = at >= begin[i] && at < end[i] ? expf(s[i][j] - highest) : 0.0f;
        total += x;
        const float kept = dropout.wanted() ? x * dropout.factor(shared.keep[row * G::kBlockN + col]) : x;
        shared.weights[row * G::kWeightStride + col] = kept;
      }
      sum[i] = sum[i] * rescale + side_sum(total);
      largest[i] = highest;
      o.scale(i, rescale);
    }
  }
};

template <class T, class G>
__global__ void __launch_bounds__(kThreads) tiled_forward_kernel(const __grid_constant__ ForwardParams<T> p) {
  extern __shared__ __align__(16) unsigned char memory[];
  ForwardShared<G>& shared = *reinterpret_cast<ForwardShared<G>*>(memory);
  const Layout& l = p.layout;
  const BlockTask task(l.batch, l.heads);
  const int b = task.batch, head = task.head, group = head / (l.heads / l.groups);
  const int first = (task.tiles - 1 - task.tile) * G::kBlockM;  // longest first
  const int count = min(G::kBlockM, l.queries - first), last = l.position + first + count - 1;
  load_tile<G::kBlockM, G::kDim>(shared.q, p.qkv + l.q(b, head, first), l.qkv_row, count, l.dim);
  OnlineSoftmax<G> softmax(p, b, first, count);
  RowSums<G> o;
  for (int key = p.first_keys.of(b, l.position + first) / G::kBlockN * G::kBlockN; key <= last;
       key += G::kBlockN) {
    const int keys = min(G::kBlockN, l.keys - key);
    // 1. Scores
    load_tile<G::kBlockN, G::kDim>(shared.other, p.kv + l.k(b, group, key), l.kv_row, keys, l.dim);
    if (p.dropout.wanted())
      p.dropout.template fill<G::kBlockM, G::kBlockN>(shared.keep, b, head, l.position + first, key);
    __syncthreads();
    float s[G::kRows][G::kCols];
    multiply_rows<G>(shared.q, shared.other, s);
    softmax.take(p.dropout, p.scale, key, s, o, shared);
    __syncthreads();  // the keys have been read and the weights written
    // 2. Values
    load_tile<G::kBlockN, G::kDim>(shared.other, p.kv + l.v(b, group, key), l.kv_row, keys, l.dim);
    __syncthreads();
    o.add(shared.weights, shared.other);
    __syncthreads();  // values and weights may be overwritten now
  }
#pragma unroll
  for (int i = 0; i < G::kRows; ++i) {
    const int row = thread_y() + i * kSide;
    o.scale(i, 1.0f / softmax.sum[i]);
    if (row < count && thread_x() == 0)
      p.lse[l.of_query(b, head, first + row)] = softmax.largest[i] + logf(softmax.sum[i]);
  }
  o.store(p.o + l.o(b, head, first), l.o_row, count, l.dim);
}

}  // namespace

void tiled_forward(const Context& context, const AttentionForward& args) {
  const AttentionShape& s = args.shape;
  const Tensor& kv = s.has_range() ? args.kv : args.qkv;
  TE_CHECK(is_aligned(args.qkv.data, 16) && is_aligned(kv.data, 16) && is_aligned(args.o.data, 16),
           "attention_forward: qkv, kv and o must be aligned to 16 bytes");
  dispatch(context, args.qkv.dtype, s.head_dim, [&]<class T, class G>() {
    const ForwardParams<T> params{args.qkv.as<T>(),
                                  kv.as<T>(),
                                  args.o.as<T>(),
                                  args.lse.as<float>(),
                                  s.softmax_scale,
                                  Layout(s),
                                  first_keys_of(s, args.document_start),
                                  Dropout(s, args.dropout_seed)};
    const int64_t blocks = s.batch * s.num_heads * ceil_div(params.layout.queries, G::kBlockM);
    launch_tiles<ForwardShared<G>>(context, tiled_forward_kernel<T, G>, blocks, params);
  });
}

}  // namespace te::kernels::cuda
