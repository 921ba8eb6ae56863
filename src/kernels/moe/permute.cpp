// Checks, dispatch and CPU reference of the order of rows by experts.
#include "kernels/moe/permute.h"

#include <algorithm>
#include <vector>

#include "core/float_types.h"
#include "kernels/activation/activation_cpu.h"
#include "kernels/common/checks.h"
#include "kernels/moe/moe_cuda.h"

namespace te::kernels {
namespace {

void check_row_ints(const char* op, const char* name, const Tensor& tensor) {
  check_dtype(op, name, tensor, DType::i32);
}

void expert_rows_cpu(const ExpertRows& a) {
  const int64_t selections = a.experts.numel(), experts = a.offsets.numel() - 1, rows = a.source.numel();
  const auto* selected = a.experts.as<int32_t>();
  auto *offsets = a.offsets.as<int32_t>(), *source = a.source.as<int32_t>();
  std::vector<int64_t> next(static_cast<size_t>(experts), 0);
  for (int64_t i = 0; i < selections; ++i)
    if (selected[i] >= 0) ++next[static_cast<size_t>(selected[i])];
  offsets[0] = 0;
  for (int64_t e = 0; e < experts; ++e) {
    int64_t& count = next[static_cast<size_t>(e)];
    offsets[e + 1] = offsets[e] + static_cast<int32_t>((count + a.alignment - 1) / a.alignment * a.alignment);
    count = offsets[e];
  }
  std::fill_n(source, rows, -1);
  for (int64_t i = 0; i < selections; ++i) {
    if (selected[i] < 0) {
      a.row_of.as<int32_t>()[i] = -1;
      continue;
    }
    const int64_t row = next[static_cast<size_t>(selected[i])]++;
    a.row_of.as<int32_t>()[i] = static_cast<int32_t>(row);
    source[row] = static_cast<int32_t>(i);
  }
}

template <class T>
void unpermute_cpu(const Unpermute& a) {
  const int64_t tokens = a.row_of.rows(), topk = a.row_of.cols(), cols = a.y.cols();
#pragma omp parallel for
  for (int64_t t = 0; t < tokens; ++t) {
    const int32_t* const row_of = a.row_of.as<int32_t>() + t * topk;
    const float gate = a.gate ? sigmoid_cpu(a.gate.as<float>()[t]) : 1.0f;
    for (int64_t c = 0; c < cols; ++c) {
      float sum = a.addend ? gate * to_float(a.addend.as<T>()[t * cols + c]) : 0.0f;
      for (int64_t i = 0; i < topk; ++i)
        if (row_of[i] >= 0) sum += to_float(a.rows.as<T>()[row_of[i] * cols + c]);
      a.y.as<T>()[t * cols + c] = from_float<T>(sum);
    }
  }
}

template <class T>
void expert_gate_backward_cpu(const ExpertGateBackward& a) {
  const int64_t cols = a.dy.cols();
#pragma omp parallel for
  for (int64_t t = 0; t < a.dy.rows(); ++t) {
    const float gate = sigmoid_cpu(a.gate.as<float>()[t]);
    float along = 0.0f;
    for (int64_t c = 0; c < cols; ++c) {
      const int64_t i = t * cols + c;
      const float dy = to_float(a.dy.as<T>()[i]);
      along += dy * to_float(a.addend.as<T>()[i]);
      a.d_addend.as<T>()[i] = from_float<T>(gate * dy);
    }
    a.d_gate.as<float>()[t] = along * gate * (1.0f - gate);
  }
}

}  // namespace

int64_t max_expert_rows(int64_t tokens, int64_t topk, int64_t experts, int64_t alignment, int64_t capacity) {
  const int64_t selections = tokens * topk;
  const int64_t all = (selections + std::min(experts, selections) * (alignment - 1)) / alignment * alignment;
  if (capacity == 0) return all;
  return std::min(all, experts * ((capacity + alignment - 1) / alignment * alignment));
}

void expert_rows(const Context& context, const ExpertRows& a) {
  const char* op = "expert_rows";
  check_row_ints(op, "experts", a.experts);
  check_row_ints(op, "offsets", a.offsets);
  check_row_ints(op, "row_of", a.row_of);
  check_row_ints(op, "source", a.source);
  check_shape(op, "row_of", a.row_of, a.experts.shape);
  const int64_t experts = a.offsets.numel() - 1;
  TE_CHECK(experts > 0 && a.alignment > 0, "{}: {} experts and alignment {} must be positive", op, experts,
           a.alignment);
  const int64_t rows = max_expert_rows(a.experts.rows(), a.experts.cols(), experts, a.alignment, a.capacity);
  TE_CHECK(a.source.numel() >= rows, "{}: source has {} rows, needs {}", op, a.source.numel(), rows);
  TE_DISPATCH_CUDA(context, expert_rows, a);
  expert_rows_cpu(a);
}

void permute(const Context& context, const Permute& a) {
  const char* op = "permute";
  check_high_precision(op, "x", a.x);
  check_row_ints(op, "source", a.source);
  check_dtype(op, "rows", a.rows, a.x.dtype);
  const int64_t cols = a.x.cols(), rows = a.source.numel();
  check_shape(op, "rows", a.rows, {rows, cols});
  TE_CHECK(a.topk > 0, "{}: topk {} must be positive", op, a.topk);
  TE_DISPATCH_CUDA(context, permute, a);
  const int64_t bytes = cols * static_cast<int64_t>(dtype_size(a.x.dtype));
#pragma omp parallel for
  for (int64_t r = 0; r < rows; ++r) {
    const int32_t source = a.source.as<int32_t>()[r];
    char* const row = a.rows.as<char>() + r * bytes;
    if (source < 0)
      std::fill_n(row, bytes, char{0});
    else
      std::copy_n(a.x.as<char>() + source / a.topk * bytes, bytes, row);
  }
}

void unpermute(const Context& context, const Unpermute& a) {
  const char* op = "unpermute";
  check_high_precision(op, "rows", a.rows);
  check_row_ints(op, "row_of", a.row_of);
  check_tensor(op, "y", a.y, a.rows.dtype, {a.row_of.rows(), a.rows.cols()});
  if (a.addend) check_tensor(op, "addend", a.addend, a.rows.dtype, a.y.shape);
  if (a.gate) {
    TE_CHECK(a.addend, "{}: gate requires an addend", op);
    check_dtype(op, "gate", a.gate, DType::f32);
    TE_CHECK(a.gate.numel() == a.y.rows(), "{}: gate {} must have {} elements", op, a.gate.shape.str(),
             a.y.rows());
  }
  TE_DISPATCH_CUDA(context, unpermute, a);
  visit_high_precision(a.y.dtype, [&](auto zero) { unpermute_cpu<decltype(zero)>(a); });
}

void expert_gate_backward(const Context& context, const ExpertGateBackward& a) {
  const char* op = "expert_gate_backward";
  check_high_precision(op, "dy", a.dy);
  for (const Tensor& tensor : {a.addend, a.d_addend})
    check_tensor(op, "addend", tensor, a.dy.dtype, a.dy.shape);
  for (const Tensor& tensor : {a.gate, a.d_gate}) {
    check_dtype(op, "gate", tensor, DType::f32);
    TE_CHECK(tensor.numel() == a.dy.rows(), "{}: gate {} must have {} elements", op, tensor.shape.str(),
             a.dy.rows());
  }
  TE_DISPATCH_CUDA(context, expert_gate_backward, a);
  visit_high_precision(a.dy.dtype, [&](auto zero) { expert_gate_backward_cpu<decltype(zero)>(a); });
}

}  // namespace te::kernels
