// Inputs and expected results for tests of any communicator. Every rank can compute the inputs of all ranks, so it
// computes the expected results locally, reductions in rank order.
#pragma once

#include <cstring>

#include "parallel/communicator.h"
#include "testing/testing.h"

namespace te::testing {

using parallel::Communicator;
using parallel::ReduceOp;

/// Input values of group rank `rank`, exactly representable in the dtype. Different `salt` gives different values.
inline std::vector<float> rank_values(DType dtype, int64_t count, int rank, uint64_t salt = 0) {
  // 24 bits of a linear congruential generator, in [-4, 4); fast because every rank generates the values of all ranks.
  uint64_t state = 1000 * salt + 17 * static_cast<uint64_t>(rank) + 3;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    value = static_cast<float>(state >> 40) * 0x1p-21f - 4.0f;
    if (dtype == DType::i32) value = std::round(value * 1000);
    visit_high_precision(dtype, [&](auto zero) { value = to_float(from_float<decltype(zero)>(value)); });
    visit_fp8(dtype, [&](auto zero) { value = to_float(from_float<decltype(zero)>(value)); });
    if (dtype == DType::u8) value = std::fabs(std::round(value * 40));
  }
  return values;
}

inline void put(TestTensor& tensor, const std::vector<float>& values) {
  if (tensor.get().dtype == DType::i32) {
    tensor.fill_ints(std::vector<int32_t>(values.begin(), values.end()));
  } else if (tensor.get().dtype == DType::u8) {
    tensor.fill_raw(std::vector<uint8_t>(values.begin(), values.end()).data());
  } else {
    tensor.fill(values);
  }
}

/// The bytes of a tensor of this dtype with these values.
inline std::vector<uint8_t> bytes_of(DType dtype, const std::vector<float>& values) {
  static const Context cpu = Context::cpu();
  TestTensor tensor(cpu, dtype, {static_cast<int64_t>(values.size())});
  put(tensor, values);
  return tensor.raw();
}

/// Sum or maximum over the group's ranks, added in FP32 in rank order and rounded once.
inline std::vector<uint8_t> reduced_bytes(DType dtype, int64_t count, int ranks, ReduceOp op,
                                          uint64_t salt = 0) {
  std::vector<float> result = rank_values(dtype, count, 0, salt);
  for (int rank = 1; rank < ranks; ++rank) {
    const std::vector<float> values = rank_values(dtype, count, rank, salt);
    for (size_t i = 0; i < values.size(); ++i) {
      result[i] = op == ReduceOp::sum ? result[i] + values[i] : std::max(result[i], values[i]);
    }
  }
  return bytes_of(dtype, result);
}

/// The ranks' values, concatenated.
inline std::vector<float> gathered_values(DType dtype, int64_t count, int ranks, uint64_t salt = 0) {
  std::vector<float> all;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::vector<float> values = rank_values(dtype, count, rank, salt);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

/// Part number `part` of `parts` equal parts.
inline std::vector<uint8_t> part_of(const std::vector<uint8_t>& bytes, int part, int parts) {
  const auto size = static_cast<std::ptrdiff_t>(bytes.size()) / parts;
  return {bytes.begin() + part * size, bytes.begin() + (part + 1) * size};
}

inline Tensor part_of(const Tensor& full, int part, int parts) {
  const int64_t count = full.numel() / parts;
  return full.view({full.numel(), 1}).slice_rows(part * count, count).view({count});
}

constexpr DType kAllDTypes[] = {DType::f32, DType::bf16, DType::f16, DType::i32,
                                DType::u8,  DType::e4m3, DType::e5m2};
constexpr DType kReducedDTypes[] = {DType::f32, DType::bf16, DType::f16, DType::i32};
/// Numbers of elements: one, fewer than ranks, unaligned, aligned, and enough for every code path of an implementation.
constexpr int64_t kCounts[] = {1, 5, 64, 1003, 20011};

/// Checks all_gather bit for bit, out of place and in place.
inline void check_all_gather(const Context& context, Communicator& group) {
  for (const DType dtype : kAllDTypes) {
    for (const int64_t count : kCounts) {
      SCOPED_TRACE(::testing::Message() << dtype_name(dtype) << " x " << count);
      const std::vector<float> own = rank_values(dtype, count, group.rank());
      const std::vector<uint8_t> expected = bytes_of(dtype, gathered_values(dtype, count, group.size()));
      TestTensor in(context, dtype, {count}), out(context, dtype, {count * group.size()});
      put(in, own);
      group.all_gather(context, in, out);
      EXPECT_EQ(out.raw(), expected);
      EXPECT_EQ(in.raw(), bytes_of(dtype, own));

      TestTensor full(context, dtype, {count * group.size()});
      const Tensor part = part_of(full.get(), group.rank(), group.size());
      context.copy(part, in);
      group.all_gather(context, part, full);
      EXPECT_EQ(full.raw(), expected) << "in place";
    }
  }
}

/// Checks all_to_all bit for bit: part i of the output is rank i's input for this rank.
inline void check_all_to_all(const Context& context, Communicator& group) {
  const int size = group.size(), rank = group.rank();
  for (const DType dtype : kAllDTypes) {
    for (const int64_t count : kCounts) {
      SCOPED_TRACE(::testing::Message() << dtype_name(dtype) << " x " << count);
      const std::vector<float> own = rank_values(dtype, count * size, rank, 3);
      std::vector<uint8_t> expected;
      for (int other = 0; other < size; ++other) {
        const std::vector<uint8_t> part =
            part_of(bytes_of(dtype, rank_values(dtype, count * size, other, 3)), rank, size);
        expected.insert(expected.end(), part.begin(), part.end());
      }
      TestTensor in(context, dtype, {count * size}), out(context, dtype, {count * size});
      put(in, own);
      group.all_to_all(context, in, out);
      EXPECT_EQ(out.raw(), expected);
      EXPECT_EQ(in.raw(), bytes_of(dtype, own));
    }
  }
}

/// Checks all_to_all of different numbers of rows, of which some are zero, at places with gaps.
inline void check_all_to_all_of_rows(const Context& context, Communicator& group) {
  constexpr int64_t kCols = 7, kMaxRows = 5;
  const int size = group.size(), rank = group.rank();
  const auto count = [](int from, int to) { return int64_t{(3 * from + 2 * to + 1) % kMaxRows}; };
  const auto values = [](int from, int to) {
    return rank_values(DType::bf16, kMaxRows * kCols, from, static_cast<uint64_t>(to) + 9);
  };
  TestTensor in(context, DType::bf16, {size * kMaxRows, kCols}),
      out(context, DType::bf16, {size * kMaxRows, kCols});
  std::vector<float> all, expected(static_cast<size_t>(out.get().numel()), -1.0f);
  parallel::RowRanges sent, received;
  for (int peer = 0; peer < size; ++peer) {
    const std::vector<float> rows = values(rank, peer), theirs = values(peer, rank);
    all.insert(all.end(), rows.begin(), rows.end());
    sent.push_back({peer * kMaxRows, count(rank, peer)});
    received.push_back({(size - 1 - peer) * kMaxRows, count(peer, rank)});
    std::copy_n(theirs.begin(), count(peer, rank) * kCols,
                expected.begin() + (size - 1 - peer) * kMaxRows * kCols);
  }
  in.fill(all), out.fill_value(-1.0f);
  group.all_to_all(context, in, sent, out, received);
  TestTensor rounded(context, DType::bf16, out.get().shape);
  rounded.fill(expected);
  EXPECT_EQ(out.raw(), rounded.raw());
}

}  // namespace te::testing
