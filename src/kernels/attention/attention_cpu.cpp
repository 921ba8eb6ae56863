// CPU attention: blocks of 64 queries against blocks of 64 keys, so that no S x S matrix is stored.
//
// Forward, per query i (Milakov and Gimelshein): the running maximum m and denominator l are updated block by block,
// earlier sums are rescaled by exp(m_old - m_new), and finally o = sum / l and lse = m + log l. Backward (Dao et al.):
// with p = exp(s - lse) recomputed, delta_i = do_i . o_i,
//   dv_j = sum_i p~_ij do_i,  dp_ij = do_i . v_j,  ds_ij = p_ij (keep_ij dp_ij - delta_i),
//   dq_i = scale sum_j ds_ij k_j,  dk_j = scale sum_i ds_ij q_i,
// where keep is the dropout factor (0 or 1 / (1 - p)) and p~ = keep p. Everything is computed in FP32.
//
// A task is one head (forward) or one query group (backward). Its sums run in a fixed order, so results do not depend
// on the number of threads.
#include "kernels/attention/attention_cpu.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/float_types.h"
#include "core/random.h"
#include "kernels/attention/first_key.h"
#include "kernels/common/exp_cpu.h"
#include "kernels/gemm/sgemm_cpu.h"

namespace te::kernels::cpu {
namespace {

constexpr int64_t kBlock = 64;

/// Element offsets of one sample's heads. q, k and v are in the packed buffer; with a query range, k and v are in a
/// buffer of their own. Queries are counted from 0 within the call; query i is at position `position` + i of the
/// sequence.
struct Layout {
  explicit Layout(const AttentionShape& s)
      : shape(s),
        range(s.has_range()),
        queries(s.queries()),
        position(s.range.position),
        dim(s.head_dim),
        heads_per_group(s.num_heads / s.num_query_groups),
        qkv_stride((s.num_heads + 2 * s.num_query_groups) * s.head_dim),
        kv_stride(range ? 2 * s.num_query_groups * s.head_dim : qkv_stride),
        o_stride(s.num_heads * s.head_dim) {}
  int64_t row(int64_t b) const { return b * shape.rows() + shape.range.first; }
  int64_t q(int64_t b, int64_t head) const { return row(b) * qkv_stride + head * dim; }
  /// Offset in kv with a range, otherwise in qkv.
  int64_t k(int64_t b, int64_t group) const {
    return b * shape.seq * kv_stride + (group + (range ? 0 : shape.num_heads)) * dim;
  }
  int64_t v(int64_t b, int64_t group) const { return k(b, group + shape.num_query_groups); }
  int64_t o(int64_t b, int64_t head) const { return row(b) * o_stride + head * dim; }
  int64_t lse(int64_t b, int64_t head) const { return (b * shape.num_heads + head) * queries; }
  /// Row of query 0 in the dropout mask of the whole model.
  int64_t mask_row(int64_t b, int64_t head) const {
    const int64_t heads = shape.total_heads > 0 ? shape.total_heads : shape.num_heads;
    return (b * heads + shape.first_head + head) * shape.seq + position;
  }

  AttentionShape shape;
  bool range;
  int64_t queries, position, dim, heads_per_group, qkv_stride, kv_stride, o_stride;
};

/// Copies rows of one head to a dense FP32 matrix [rows, dim].
template <class T>
void load(std::vector<float>& to, const T* from, int64_t stride, int64_t rows, int64_t dim) {
  to.resize(static_cast<size_t>(rows * dim));
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t d = 0; d < dim; ++d) to[static_cast<size_t>(i * dim + d)] = to_float(from[i * stride + d]);
}

template <class T>
void store(T* to, int64_t stride, const float* from, int64_t rows, int64_t dim) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t d = 0; d < dim; ++d) to[i * stride + d] = from_float<T>(from[i * dim + d]);
}

/// Dropout factors of one block. The word of an element is word j % 4 of philox(seed, 0, (row * ceil4(seq) + j) / 4),
/// where row is (sample * heads + head) * seq + query, with heads counted over the whole model. The element is kept if
/// the word is at least dropout * 2^32.
struct DropoutMask {
  float probability;
  uint64_t seed;
  int64_t seq;

  void fill(float* keep, int64_t first_row, int64_t rows, int64_t first_key, int64_t cols) const {
    const auto threshold = static_cast<uint64_t>(double{probability} * 4294967296.0);
    const float kept = 1.0f / (1.0f - probability);
    const int64_t calls_per_row = (seq + 3) / 4;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; c += 4) {
        const Philox4 random =
            philox(seed, 0, static_cast<uint64_t>((first_row + r) * calls_per_row + (first_key + c) / 4));
        for (int64_t w = 0; w < 4 && c + w < cols; ++w)
          keep[r * cols + c + w] = random.word[w] >= threshold ? kept : 0.0f;
      }
    }
  }
};

/// First keys that the queries of one sample see.
struct Past {
  FirstKeys first_keys;
  int64_t sample;

  int64_t begin(int64_t i) const { return first_keys.of(static_cast<int>(sample), static_cast<int>(i)); }
};

/// A block of the score matrix: queries [i0, i0 + rows), the first of which is at `position`, against keys [j0, j0 +
/// cols), with j0 <= position.
struct Block {
  int64_t i0, rows, position, j0, cols;
  const Past& past;

  /// Query i0 + r sees keys [first, end) of the block; none if end <= first.
  int64_t first(int64_t r) const { return std::clamp<int64_t>(past.begin(position + r) - j0, 0, cols); }
  int64_t end(int64_t r) const { return std::min(cols, position + r - j0 + 1); }
};

/// Calls fn(block) for the key blocks that a block of queries sees: at or below the diagonal, and not before the first
/// key of the first query.
template <class Fn>
void for_key_blocks(int64_t i0, int64_t rows, const Layout& layout, const Past& past, Fn&& fn) {
  const int64_t position = layout.position + i0;
  for (int64_t j0 = past.begin(position) / kBlock * kBlock; j0 < position + rows; j0 += kBlock)
    fn(Block{i0, rows, position, j0, std::min(kBlock, layout.shape.seq - j0), past});
}

Past past_of(const AttentionShape& shape, const Tensor& document_start, int64_t b) {
  return {first_keys_of(shape, document_start), b};
}

// --- forward -----------------------------------------------------------------------------------------------

/// Buffers that a thread reuses for all of its heads.
struct ForwardBuffers {
  std::vector<float> q, k, v, sum;
  std::vector<float> scores = std::vector<float>(kBlock * kBlock);
  std::vector<float> keep = std::vector<float>(kBlock * kBlock);
  float maximum[kBlock], denominator[kBlock];
};

/// Converts a block of scores into unnormalized probabilities and rescales the sums of earlier blocks.
void online_softmax(const Block& block, ForwardBuffers& buffers, int64_t dim) {
  for (int64_t r = 0; r < block.rows; ++r) {
    float* row = buffers.scores.data() + r * block.cols;
    const int64_t first = block.first(r), end = block.end(r);
    if (end <= first) {  // the query's document or window begins after this block
      std::fill(row, row + block.cols, 0.0f);
      continue;
    }
    float maximum = buffers.maximum[r];
    for (int64_t c = first; c < end; ++c) maximum = std::max(maximum, row[c]);
    const float rescale =
        block.j0 == 0 ? 0.0f : exp_nonpositive(std::min(0.0f, buffers.maximum[r] - maximum));
    std::fill(row, row + first, 0.0f);
    for (int64_t c = first; c < end; ++c) row[c] = exp_nonpositive(row[c] - maximum);
    std::fill(row + end, row + block.cols, 0.0f);
    float total = 0.0f;
    for (int64_t c = first; c < end; ++c) total += row[c];
    buffers.denominator[r] = buffers.denominator[r] * rescale + total;
    buffers.maximum[r] = maximum;
    if (rescale != 1.0f)
      for (int64_t d = 0; d < dim; ++d) buffers.sum[static_cast<size_t>(r * dim + d)] *= rescale;
  }
}

template <class T>
void forward_rows(const AttentionForward& args, const Layout& layout, int64_t b, int64_t head, int64_t i0,
                  const DropoutMask& dropout, ForwardBuffers& buffers) {
  const int64_t dim = layout.dim;
  const int64_t rows = std::min(kBlock, layout.queries - i0);
  const Past past = past_of(args.shape, args.document_start, b);
  buffers.sum.assign(static_cast<size_t>(rows * dim), 0.0f);
  std::fill_n(buffers.denominator, rows, 0.0f);
  std::fill_n(buffers.maximum, rows, -std::numeric_limits<float>::infinity());
  for_key_blocks(i0, rows, layout, past, [&](const Block& block) {
    sgemm_one_thread(false, true, rows, block.cols, dim, layout.shape.softmax_scale,
                     buffers.q.data() + i0 * dim, dim, buffers.k.data() + block.j0 * dim, dim, 0.0f,
                     buffers.scores.data(), block.cols);
    online_softmax(block, buffers, dim);
    if (dropout.probability > 0.0f) {
      dropout.fill(buffers.keep.data(), layout.mask_row(b, head) + i0, rows, block.j0, block.cols);
      for (int64_t i = 0; i < rows * block.cols; ++i)
        buffers.scores[static_cast<size_t>(i)] *= buffers.keep[static_cast<size_t>(i)];
    }
    sgemm_one_thread(false, false, rows, dim, block.cols, 1.0f, buffers.scores.data(), block.cols,
                     buffers.v.data() + block.j0 * dim, dim, 1.0f, buffers.sum.data(), dim);
  });
  float* lse = args.lse.as<float>() + layout.lse(b, head) + i0;
  for (int64_t r = 0; r < rows; ++r) {
    lse[r] = buffers.maximum[r] + std::log(buffers.denominator[r]);
    const float inverse = 1.0f / buffers.denominator[r];
    for (int64_t d = 0; d < dim; ++d) buffers.sum[static_cast<size_t>(r * dim + d)] *= inverse;
  }
  store(args.o.as<T>() + layout.o(b, head) + i0 * layout.o_stride, layout.o_stride, buffers.sum.data(), rows,
        dim);
}

template <class T>
void forward(const AttentionForward& args) {
  const Layout layout(args.shape);
  const AttentionShape& shape = args.shape;
  const DropoutMask dropout{shape.dropout, args.dropout_seed, shape.seq};
  const T *qkv = args.qkv.as<T>(), *kv = (layout.range ? args.kv : args.qkv).as<T>();
  require_openblas_memory();
#pragma omp parallel for schedule(dynamic)
  for (int64_t task = 0; task < shape.batch * shape.num_heads; ++task) {
    static thread_local ForwardBuffers buffers;
    const int64_t b = task / shape.num_heads, head = task % shape.num_heads;
    const int64_t group = head / layout.heads_per_group;
    load(buffers.q, qkv + layout.q(b, head), layout.qkv_stride, layout.queries, layout.dim);
    load(buffers.k, kv + layout.k(b, group), layout.kv_stride, shape.seq, layout.dim);
    load(buffers.v, kv + layout.v(b, group), layout.kv_stride, shape.seq, layout.dim);
    for (int64_t i0 = 0; i0 < layout.queries; i0 += kBlock)
      forward_rows<T>(args, layout, b, head, i0, dropout, buffers);
  }
}

// --- backward ----------------------------------------------------------------------------------------------

struct BackwardBuffers {
  std::vector<float> q, k, v, o, d_o, delta;
  std::vector<float> dq, dk, dv;  ///< dq of one block of queries; dk and dv of the whole group
  std::vector<float> p = std::vector<float>(kBlock * kBlock);
  std::vector<float> ds = std::vector<float>(kBlock * kBlock);
  std::vector<float> keep = std::vector<float>(kBlock * kBlock);
};

/// Input: scores in p and do . v in ds. Output: p = keep * p, ds = p * (keep * ds - delta).
void score_gradients(const Block& block, const float* lse, bool use_keep, BackwardBuffers& buffers) {
  for (int64_t r = 0; r < block.rows; ++r) {
    float* p = buffers.p.data() + r * block.cols;
    float* ds = buffers.ds.data() + r * block.cols;
    const float* keep = buffers.keep.data() + r * block.cols;
    const float delta = buffers.delta[static_cast<size_t>(block.i0 + r)], denominator = lse[block.i0 + r];
    const int64_t first = block.first(r), end = std::max(first, block.end(r));
    // s - lse is at most 0, except for rounding.
    for (int64_t c = first; c < end; ++c) p[c] = exp_nonpositive(p[c] - denominator);
    if (use_keep) {
      for (int64_t c = first; c < end; ++c) ds[c] = p[c] * (keep[c] * ds[c] - delta);
      for (int64_t c = first; c < end; ++c) p[c] *= keep[c];
    } else {
      for (int64_t c = first; c < end; ++c) ds[c] = p[c] * (ds[c] - delta);
    }
    for (float* row : {p, ds}) {
      std::fill(row, row + first, 0.0f);
      std::fill(row + end, row + block.cols, 0.0f);
    }
  }
}

void backward_block(const Block& block, const Layout& layout, const float* lse, int64_t first_row,
                    const DropoutMask& dropout, BackwardBuffers& buffers) {
  const int64_t dim = layout.dim, rows = block.rows, cols = block.cols;
  const float scale = layout.shape.softmax_scale;
  const float* q = buffers.q.data() + block.i0 * dim;
  const float* d_o = buffers.d_o.data() + block.i0 * dim;
  const float* k = buffers.k.data() + block.j0 * dim;
  const float* v = buffers.v.data() + block.j0 * dim;
  float* p = buffers.p.data();
  float* ds = buffers.ds.data();
  sgemm_one_thread(false, true, rows, cols, dim, scale, q, dim, k, dim, 0.0f, p, cols);
  sgemm_one_thread(false, true, rows, cols, dim, 1.0f, d_o, dim, v, dim, 0.0f, ds, cols);
  const bool use_keep = dropout.probability > 0.0f;
  if (use_keep) dropout.fill(buffers.keep.data(), first_row + block.i0, rows, block.j0, cols);
  score_gradients(block, lse, use_keep, buffers);
  sgemm_one_thread(true, false, cols, dim, rows, 1.0f, p, cols, d_o, dim, 1.0f,
                   buffers.dv.data() + block.j0 * dim, dim);
  sgemm_one_thread(true, false, cols, dim, rows, scale, ds, cols, q, dim, 1.0f,
                   buffers.dk.data() + block.j0 * dim, dim);
  sgemm_one_thread(false, false, rows, dim, cols, scale, ds, cols, k, dim, 1.0f, buffers.dq.data(), dim);
}

template <class T>
void backward_head(const AttentionBackward& args, const Layout& layout, int64_t b, int64_t head,
                   const DropoutMask& dropout, BackwardBuffers& buffers) {
  const int64_t queries = layout.queries, dim = layout.dim;
  load(buffers.q, args.qkv.as<T>() + layout.q(b, head), layout.qkv_stride, queries, dim);
  load(buffers.o, args.o.as<T>() + layout.o(b, head), layout.o_stride, queries, dim);
  load(buffers.d_o, args.d_o.as<T>() + layout.o(b, head), layout.o_stride, queries, dim);
  buffers.delta.resize(static_cast<size_t>(queries));
  for (int64_t i = 0; i < queries; ++i) {
    float sum = 0.0f;
    for (int64_t d = i * dim; d < (i + 1) * dim; ++d)
      sum += buffers.o[static_cast<size_t>(d)] * buffers.d_o[static_cast<size_t>(d)];
    buffers.delta[static_cast<size_t>(i)] = sum;
  }
  const float* lse = args.lse.as<float>() + layout.lse(b, head);
  T* dq = args.dqkv.as<T>() + layout.q(b, head);
  const Past past = past_of(args.shape, args.document_start, b);
  for (int64_t i0 = 0; i0 < queries; i0 += kBlock) {
    const int64_t rows = std::min(kBlock, queries - i0);
    buffers.dq.assign(static_cast<size_t>(rows * dim), 0.0f);
    for_key_blocks(i0, rows, layout, past, [&](const Block& block) {
      backward_block(block, layout, lse, layout.mask_row(b, head), dropout, buffers);
    });
    store(dq + i0 * layout.qkv_stride, layout.qkv_stride, buffers.dq.data(), rows, dim);
  }
}

template <class T>
void backward(const AttentionBackward& args) {
  const Layout layout(args.shape);
  const AttentionShape& shape = args.shape;
  const DropoutMask dropout{shape.dropout, args.dropout_seed, shape.seq};
  const T* kv = (layout.range ? args.kv : args.qkv).as<T>();
  T* const dkv = (layout.range ? args.dkv : args.dqkv).as<T>();
  const int64_t keys = shape.keys();
  require_openblas_memory();
#pragma omp parallel for schedule(dynamic)
  for (int64_t task = 0; task < shape.batch * shape.num_query_groups; ++task) {
    static thread_local BackwardBuffers buffers;
    const int64_t b = task / shape.num_query_groups, group = task % shape.num_query_groups;
    load(buffers.k, kv + layout.k(b, group), layout.kv_stride, shape.seq, layout.dim);
    load(buffers.v, kv + layout.v(b, group), layout.kv_stride, shape.seq, layout.dim);
    buffers.dk.assign(static_cast<size_t>(shape.seq * layout.dim), 0.0f);
    buffers.dv.assign(static_cast<size_t>(shape.seq * layout.dim), 0.0f);
    for (int64_t h = 0; h < layout.heads_per_group; ++h)
      backward_head<T>(args, layout, b, group * layout.heads_per_group + h, dropout, buffers);
    store(dkv + layout.k(b, group), layout.kv_stride, buffers.dk.data(), keys, layout.dim);
    store(dkv + layout.v(b, group), layout.kv_stride, buffers.dv.data(), keys, layout.dim);
  }
}

}  // namespace

void attention_forward(const AttentionForward& args) {
  visit_high_precision(args.qkv.dtype, [&](auto zero) { forward<decltype(zero)>(args); });
}

void attention_backward(const AttentionBackward& args) {
  visit_high_precision(args.qkv.dtype, [&](auto zero) { backward<decltype(zero)>(args); });
}

}  // namespace te::kernels::cpu
