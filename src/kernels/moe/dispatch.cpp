// Checks, dispatch and CPU reference of the order of received rows.
#include "kernels/moe/dispatch.h"

#include <algorithm>
#include <vector>

#include "kernels/common/checks.h"
#include "kernels/moe/moe_cuda.h"
#include "kernels/moe/router.h"

namespace te::kernels {
namespace {

void dispatch_rows_cpu(const DispatchRows& a) {
  const int64_t ranks = a.counts.rows(), stride = a.counts.cols(), experts = a.offsets.numel() - 1;
  const int64_t capacity = a.row_of.numel(), begin = a.round * capacity, end = begin + capacity;
  const auto count = [&](int64_t rank, int64_t expert) {
    const int32_t* const first = a.counts.as<int32_t>() + rank * stride + a.first_expert + expert;
    return int64_t{first[1]} - first[0];
  };
  // 1. Rows of each expert and rank that belong to the round.
  std::vector<int64_t> rows(static_cast<size_t>(experts * ranks));
  int64_t position = 0;
  for (int64_t e = 0; e < experts; ++e)
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const int64_t next = position + count(rank, e);
      rows[static_cast<size_t>(e * ranks + rank)] =
          std::clamp(next, begin, end) - std::clamp(position, begin, end);
      position = next;
    }
  // 2. Their places in both orders.
  std::fill_n(a.source.as<int32_t>(), a.source.numel(), -1);
  std::fill_n(a.row_of.as<int32_t>(), capacity, -1);
  std::vector<int64_t> received(rows.size());
  int64_t at = 0;
  for (int64_t rank = 0; rank < ranks; ++rank)
    for (int64_t e = 0; e < experts; ++e) {
      received[static_cast<size_t>(e * ranks + rank)] = at;
      at += rows[static_cast<size_t>(e * ranks + rank)];
    }
  auto* const offsets = a.offsets.as<int32_t>();
  offsets[0] = 0;
  for (int64_t e = 0; e < experts; ++e) {
    int64_t row = offsets[e];
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const auto segment = static_cast<size_t>(e * ranks + rank);
      for (int64_t i = 0; i < rows[segment]; ++i, ++row) {
        a.source.as<int32_t>()[row] = static_cast<int32_t>(received[segment] + i);
        a.row_of.as<int32_t>()[received[segment] + i] = static_cast<int32_t>(row);
      }
    }
    offsets[e + 1] = static_cast<int32_t>((row + a.alignment - 1) / a.alignment * a.alignment);
  }
}

}  // namespace

int64_t dispatch_rows_capacity(int64_t capacity, int64_t experts, int64_t alignment) {
  return (capacity + std::min(experts, capacity) * (alignment - 1)) / alignment * alignment;
}

void dispatch_rows(const Context& context, const DispatchRows& a) {
  const char* op = "dispatch_rows";
  for (const Tensor& tensor : {a.counts, a.offsets, a.segments, a.source, a.row_of})
    check_dtype(op, "tensor", tensor, DType::i32);
  const int64_t experts = a.offsets.numel() - 1, ranks = a.counts.rows();
  TE_CHECK(experts > 0 && a.first_expert >= 0 && a.first_expert + experts < a.counts.cols(),
           "{}: experts {}+{} of {}", op, a.first_expert, experts, a.counts.cols() - 1);
  TE_CHECK(experts * ranks <= kMaxExperts, "{}: {} experts of {} ranks, at most {}", op, experts, ranks,
           kMaxExperts);
  TE_CHECK(a.alignment > 0 && a.round >= 0, "{}: alignment {}, round {}", op, a.alignment, a.round);
  check_shape(op, "segments", a.segments, {experts * ranks, 3});
  check_shape(op, "source", a.source, {dispatch_rows_capacity(a.row_of.numel(), experts, a.alignment)});
  TE_DISPATCH_CUDA(context, dispatch_rows, a);
  dispatch_rows_cpu(a);
}

void gather_values(const Context& context, const GatherValues& a) {
  const char* op = "gather_values";
  TE_CHECK(a.x.dtype == DType::f32 || a.x.dtype == DType::i32, "{}: x is {}, must be fp32 or i32", op,
           dtype_name(a.x.dtype));
  check_dtype(op, "index", a.index, DType::i32);
  check_dtype(op, "out", a.out, a.x.dtype);
  TE_CHECK(a.index.numel() == a.out.numel(), "{}: {} indices for {} values", op, a.index.numel(),
           a.out.numel());
  TE_DISPATCH_CUDA(context, gather_values, a);
  for (int64_t i = 0; i < a.out.numel(); ++i) {
    const int32_t from = a.index.as<int32_t>()[i];
    a.out.as<uint32_t>()[i] = from < 0 ? 0 : a.x.as<uint32_t>()[from];  // a copy of bits
  }
}

}  // namespace te::kernels
