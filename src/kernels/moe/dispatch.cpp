// Checks, dispatch and CPU reference of the order of received rows and tokens.
#include "kernels/moe/dispatch.h"

#include <algorithm>
#include <vector>

#include "kernels/common/checks.h"
#include "kernels/moe/moe_cuda.h"
#include "kernels/moe/router.h"

namespace te::kernels {
namespace {

void token_ranks_cpu(const TokenRanks& a) {
  const int64_t topk = a.row_of.cols(), ranks = a.ranks.cols(), own = (a.offsets.numel() - 1) / ranks;
  const auto* const offsets = a.offsets.as<int32_t>();
  for (int64_t t = 0; t < a.row_of.rows(); ++t) {
    const int32_t* const row_of = a.row_of.as<int32_t>() + t * topk;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const bool sent = std::any_of(row_of, row_of + topk, [&](int32_t row) {
        return row >= offsets[rank * own] && row < offsets[(rank + 1) * own];
      });
      a.ranks.as<int32_t>()[t * ranks + rank] = sent ? static_cast<int32_t>(rank) : -1;
    }
  }
}

void token_slots_cpu(const TokenSlots& a) {
  const int64_t topk = a.row_of.cols(), ranks = a.token_row_of.cols(), own = (a.offsets.numel() - 1) / ranks;
  const int64_t width = token_slot_count(topk, own);
  const auto* const offsets = a.offsets.as<int32_t>();
  for (int64_t i = 0; i < a.row_of.numel(); ++i) {
    const int32_t row = a.row_of.as<int32_t>()[i];
    if (row < 0) continue;
    int64_t rank = 0;
    while (row >= offsets[(rank + 1) * own]) ++rank;
    const int32_t* const rows = a.row_of.as<int32_t>() + i / topk * topk;
    const int64_t slot = std::count_if(
        rows, rows + topk, [&](int32_t other) { return other >= offsets[rank * own] && other < row; });
    const int64_t token =
        a.token_row_of.as<int32_t>()[i / topk * ranks + rank] - a.token_offsets.as<int32_t>()[rank];
    a.slots.as<int32_t>()[row] = static_cast<int32_t>(token * width + slot);
  }
}

/// The range of slots of a rank's tokens in the slots of all received tokens: [first, end).
struct SlotRange {
  int64_t first = 0, end = 0;
};

std::vector<SlotRange> slots_of_ranks(const DispatchRows& a) {
  const int64_t ranks = a.counts.rows(), stride = a.counts.cols(), experts = a.offsets.numel() - 1;
  std::vector<SlotRange> ranges;
  int64_t end = 0;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const int32_t* const first =
        a.counts.as<int32_t>() + (rank + 1) * stride - (ranks + 1) + a.first_expert / experts;
    ranges.push_back({end, end + (int64_t{first[1]} - first[0]) * a.token_rows.cols()});
    end = ranges.back().end;
  }
  return ranges;
}

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
  std::fill_n(a.token_source.as<int32_t>(), a.token_source.numel(), -1);
  std::fill_n(a.token_rows.as<int32_t>(), a.token_rows.numel(), -1);
  const std::vector<SlotRange> slots = a.slots ? slots_of_ranks(a) : std::vector<SlotRange>{};
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
        if (!a.slots) continue;
        const SlotRange& range = slots[static_cast<size_t>(rank)];
        const int64_t slot = a.slots.as<int32_t>()[received[segment] + i], place = range.first + slot;
        if (slot < 0 || place >= range.end) continue;  // a dry run receives no slots of others
        a.token_source.as<int32_t>()[row] = static_cast<int32_t>(place);
        a.token_rows.as<int32_t>()[place] = static_cast<int32_t>(row);
      }
    }
    offsets[e + 1] = static_cast<int32_t>((row + a.alignment - 1) / a.alignment * a.alignment);
  }
}

/// `offsets`: of experts, which the ranks divide evenly.
void check_lists(const char* op, std::initializer_list<Tensor> lists, const Tensor& offsets, int64_t ranks) {
  for (const Tensor& list : lists) check_dtype(op, "tensor", list, DType::i32);
  const int64_t experts = offsets.numel() - 1;
  TE_CHECK(experts > 0 && experts % ranks == 0, "{}: {} experts of {} ranks", op, experts, ranks);
}

}  // namespace

int64_t dispatch_rows_capacity(int64_t capacity, int64_t experts, int64_t alignment) {
  return (capacity + std::min(experts, capacity) * (alignment - 1)) / alignment * alignment;
}

int64_t token_slot_count(int64_t topk, int64_t experts_of_rank) {
  return std::min(topk, experts_of_rank);
}

void token_ranks(const Context& context, const TokenRanks& a) {
  const char* op = "token_ranks";
  const int64_t ranks = a.ranks.cols();
  check_lists(op, {a.row_of, a.offsets, a.ranks}, a.offsets, ranks);
  check_shape(op, "ranks", a.ranks, {a.row_of.rows(), ranks});
  TE_DISPATCH_CUDA(context, token_ranks, a);
  token_ranks_cpu(a);
}

void token_slots(const Context& context, const TokenSlots& a) {
  const char* op = "token_slots";
  const int64_t ranks = a.token_row_of.cols();
  check_lists(op, {a.row_of, a.offsets, a.token_row_of, a.token_offsets, a.slots}, a.offsets, ranks);
  check_shape(op, "token_row_of", a.token_row_of, {a.row_of.rows(), ranks});
  check_shape(op, "token_offsets", a.token_offsets, {ranks + 1});
  TE_CHECK(a.slots.numel() >= a.row_of.numel(), "{}: {} slots for {} selections", op, a.slots.numel(),
           a.row_of.numel());
  TE_DISPATCH_CUDA(context, token_slots, a);
  token_slots_cpu(a);
}

void dispatch_rows(const Context& context, const DispatchRows& a) {
  const char* op = "dispatch_rows";
  for (const Tensor& tensor : {a.counts, a.offsets, a.segments, a.source, a.row_of})
    check_dtype(op, "tensor", tensor, DType::i32);
  const int64_t experts = a.offsets.numel() - 1, ranks = a.counts.rows();
  TE_CHECK(experts > 0 && a.first_expert >= 0 && a.first_expert % experts == 0 &&
               a.first_expert < experts * ranks && experts * ranks < a.counts.cols(),
           "{}: experts {}+{} of {} ranks, counts {}", op, a.first_expert, experts, ranks,
           a.counts.shape.str());
  TE_CHECK(experts * ranks <= kMaxExperts, "{}: {} experts of {} ranks, at most {}", op, experts, ranks,
           kMaxExperts);
  TE_CHECK(a.alignment > 0 && a.round >= 0, "{}: alignment {}, round {}", op, a.alignment, a.round);
  check_shape(op, "segments", a.segments, {experts * ranks, 3});
  check_shape(op, "source", a.source, {dispatch_rows_capacity(a.row_of.numel(), experts, a.alignment)});
  if (a.slots) {
    for (const Tensor& tensor : {a.slots, a.token_source, a.token_rows})
      check_dtype(op, "tensor", tensor, DType::i32);
    TE_CHECK(a.slots.numel() == a.row_of.numel() && a.token_source.numel() == a.source.numel(),
             "{}: {} slots of {} received rows, {} of {} rows", op, a.slots.numel(), a.row_of.numel(),
             a.token_source.numel(), a.source.numel());
    TE_CHECK(a.round == 0 && a.counts.cols() == experts * ranks + ranks + 2,
             "{}: tokens in round {}, counts {}", op, a.round, a.counts.shape.str());
  }
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
