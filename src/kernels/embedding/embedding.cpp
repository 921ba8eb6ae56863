// Checks, dispatch and CPU reference of the embedding.
#include "kernels/embedding/embedding.h"

#include <algorithm>
#include <vector>

#include "core/float_types.h"
#include "kernels/common/checks.h"
#include "kernels/embedding/embedding_cuda.h"

namespace te::kernels {
namespace {

void check_positions(const char* op, const char* name, const Tensor& positions, DType dtype, int64_t seq,
                     int64_t hidden) {
  check_dtype(op, name, positions, dtype);
  TE_CHECK(seq >= 1, "{}: seq {} must be at least 1", op, seq);
  TE_CHECK(positions.shape.rank() == 2 && positions.dim(0) >= seq && positions.dim(1) == hidden,
           "{}: {} has shape {}, must be [>= {}, {}]", op, name, positions.shape.str(), seq, hidden);
}

template <class T>
void embedding_forward_cpu(const EmbeddingForward& args) {
  const int64_t rows = args.tokens.numel(), hidden = args.table.dim(1), held = args.table.dim(0);
  const int32_t* tokens = args.tokens.as<int32_t>();
  const T* table = args.table.as<T>();
  const T* positions = args.positions.as<T>();
  const int32_t* ids = args.position_ids.as<int32_t>();
#pragma omp parallel for schedule(static)
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t token = tokens[r] - args.first_token;
    const bool elsewhere = token < 0 || token >= held;
    const T* row = elsewhere ? nullptr : table + token * hidden;
    const int64_t id = ids != nullptr ? ids[r] : positions != nullptr ? r % args.seq : 0;
    const T* position = positions != nullptr ? positions + id * hidden : nullptr;
    T* out = args.out.as<T>() + r * hidden;
    if (position == nullptr && elsewhere) {
      std::fill_n(out, hidden, T{});
    } else if (position == nullptr || elsewhere) {
      std::copy_n(elsewhere ? position : row, hidden, out);
    } else {
      for (int64_t c = 0; c < hidden; ++c) out[c] = from_float<T>(to_float(row[c]) + to_float(position[c]));
    }
  }
}

/// Columns that a thread processes at a time.
constexpr int64_t kColumns = 64;

// Rows are added in ascending order. Threads own blocks of columns, so the result does not depend on the number of
// threads.
template <class T>
void backward_table_cpu(const EmbeddingBackward& args) {
  const int64_t rows = args.tokens.numel(), hidden = args.dtable.dim(1), held = args.dtable.dim(0);
  const int32_t* tokens = args.tokens.as<int32_t>();
  const T* dout = args.dout.as<T>();
  float* dtable = args.dtable.as<float>();
#pragma omp parallel for schedule(static)
  for (int64_t begin = 0; begin < hidden; begin += kColumns) {
    const int64_t end = std::min(begin + kColumns, hidden);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t token = tokens[r] - args.first_token;
      if (token < 0 || token >= held) continue;
      float* target = dtable + token * hidden;
      for (int64_t c = begin; c < end; ++c) target[c] += to_float(dout[r * hidden + c]);
    }
  }
}

/// Rows whose tokens this slice holds, grouped by token, in ascending order within a token.
std::vector<int64_t> rows_by_token(const EmbeddingBackward& args) {
  const int32_t* tokens = args.tokens.as<int32_t>();
  std::vector<int64_t> order;
  for (int64_t r = 0; r < args.tokens.numel(); ++r) {
    const int64_t token = tokens[r] - args.first_token;
    if (token >= 0 && token < args.dtable.dim(0)) order.push_back(r);
  }
  std::ranges::stable_sort(order, [&](int64_t a, int64_t b) { return tokens[a] < tokens[b]; });
  return order;
}

// A bf16 table must not be rounded once per row, so the rows of a token are first added in FP32.
template <class T>
void backward_rounded_table_cpu(const EmbeddingBackward& args) {
  const int64_t hidden = args.dtable.dim(1);
  const int32_t* tokens = args.tokens.as<int32_t>();
  const std::vector<int64_t> order = rows_by_token(args);
  const T* dout = args.dout.as<T>();
  bfloat16* dtable = args.dtable.as<bfloat16>();
#pragma omp parallel for schedule(static)
  for (int64_t begin = 0; begin < hidden; begin += kColumns) {
    const int64_t columns = std::min(kColumns, hidden - begin);
    for (size_t i = 0; i < order.size();) {
      const int32_t token = tokens[order[i]];
      float sum[kColumns] = {};
      for (; i < order.size() && tokens[order[i]] == token; ++i) {
        const T* row = dout + order[i] * hidden + begin;
        for (int64_t c = 0; c < columns; ++c) sum[c] += to_float(row[c]);
      }
      bfloat16* target = dtable + (token - args.first_token) * hidden + begin;
      for (int64_t c = 0; c < columns; ++c) target[c] = to_bf16(to_float(target[c]) + sum[c]);
    }
  }
}

/// Grad: the dtype of dpositions.
template <class T, class Grad>
void backward_positions_cpu(const EmbeddingBackward& args) {
  const int64_t rows = args.tokens.numel(), hidden = args.dout.dim(1);
  const T* dout = args.dout.as<T>();
#pragma omp parallel
  {
    std::vector<float> sum(static_cast<size_t>(hidden));
#pragma omp for schedule(static)
    for (int64_t s = 0; s < args.seq; ++s) {
      std::ranges::fill(sum, 0.0f);
      for (int64_t r = s; r < rows; r += args.seq)
        for (int64_t c = 0; c < hidden; ++c) sum[static_cast<size_t>(c)] += to_float(dout[r * hidden + c]);
      Grad* target = args.dpositions.as<Grad>() + s * hidden;
      for (int64_t c = 0; c < hidden; ++c)
        target[c] = from_float<Grad>(to_float(target[c]) + sum[static_cast<size_t>(c)]);
    }
  }
}

}  // namespace

void embedding_forward(const Context& context, const EmbeddingForward& args) {
  const char* op = "embedding_forward";
  check_dtype(op, "tokens", args.tokens, DType::i32);
  check_high_precision(op, "table", args.table);
  TE_CHECK(args.table.shape.rank() == 2, "{}: table has shape {}, must be [vocab, hidden]", op,
           args.table.shape.str());
  const int64_t hidden = args.table.dim(1);
  check_tensor(op, "out", args.out, args.table.dtype, {args.tokens.numel(), hidden});
  if (args.positions) check_positions(op, "positions", args.positions, args.table.dtype, args.seq, hidden);
  if (args.position_ids)
    check_tensor(op, "position_ids", args.position_ids, DType::i32, {args.tokens.numel()});
  TE_CHECK(args.first_token >= 0, "{}: first_token {} must not be negative", op, args.first_token);
  if (args.out.numel() == 0) return;
  TE_DISPATCH_CUDA(context, embedding_forward, args);
  for (int64_t r = 0; args.positions && r < args.position_ids.numel(); ++r) {
    const int32_t position = args.position_ids.as<int32_t>()[r];
    TE_CHECK(position >= 0 && position < args.positions.dim(0), "{}: position {} of row {} must be below {}",
             op, position, r, args.positions.dim(0));
  }
  visit_high_precision(args.table.dtype, [&](auto zero) { embedding_forward_cpu<decltype(zero)>(args); });
}

void embedding_backward(const Context& context, const EmbeddingBackward& args) {
  const char* op = "embedding_backward";
  check_dtype(op, "tokens", args.tokens, DType::i32);
  check_high_precision(op, "dout", args.dout);
  if (!args.dtable && !args.dpositions) return;
  const Tensor& first = args.dtable ? args.dtable : args.dpositions;
  check_grad(op, args.dtable ? "dtable" : "dpositions", first);
  TE_CHECK(first.shape.rank() == 2, "{}: the gradient has shape {}, must be [vocab or positions, hidden]", op,
           first.shape.str());
  const int64_t hidden = first.dim(1);
  check_shape(op, "dout", args.dout, {args.tokens.numel(), hidden});
  if (args.dpositions) check_positions(op, "dpositions", args.dpositions, first.dtype, args.seq, hidden);
  TE_CHECK(args.first_token >= 0, "{}: first_token {} must not be negative", op, args.first_token);
  if (args.dout.numel() == 0) return;
  TE_DISPATCH_CUDA(context, embedding_backward, args);
  visit_high_precision(args.dout.dtype, [&](auto zero) {
    using T = decltype(zero);
    if (first.dtype == DType::f32) {
      if (args.dtable) backward_table_cpu<T>(args);
      if (args.dpositions) backward_positions_cpu<T, float>(args);
    } else {
      if (args.dtable) backward_rounded_table_cpu<T>(args);
      if (args.dpositions) backward_positions_cpu<T, bfloat16>(args);
    }
  });
}

int64_t embedding_backward_workspace_bytes(const Context& context, int64_t rows, int64_t hidden) {
  TE_ASK_CUDA(context, embedding_backward_workspace_bytes, rows, hidden);
  return 0;  // the CPU reference needs none
}

}  // namespace te::kernels
