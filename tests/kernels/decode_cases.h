// A cache, rows of several sequences, and attention against the cache in double precision, for the tests of both
// backends.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/attention/decode.h"
#include "testing/testing.h"

namespace te::testing {

struct DecodeCase {
  int64_t batch, length, heads, groups, dim;
  std::vector<int32_t> sequences, positions;  ///< of the rows
  int64_t window = 0;
};

/// Unaligned and aligned heads, grouped queries, one row and many, first and last positions of the cache.
inline std::vector<DecodeCase> decode_cases() {
  std::vector<int32_t> prompt(70), zeros(70, 0);
  for (int32_t i = 0; i < 70; ++i) prompt[static_cast<size_t>(i)] = i;
  return {{1, 1, 1, 1, 2, {0}, {0}},
          {2, 9, 3, 1, 5, {1, 0, 1}, {8, 0, 7}},
          {3, 40, 4, 2, 32, {2, 0, 1}, {39, 3, 4}},
          {1, 70, 2, 2, 64, zeros, prompt},
          {2, 333, 8, 2, 128, {0, 1}, {332, 31}},
          {2, 50, 4, 4, 80, {1, 1, 0}, {49, 48, 0}},
          {1, 37, 2, 1, 256, {0}, {36}},
          {1, 37, 2, 1, 200, {0}, {33}},
          {1, 70, 2, 2, 64, zeros, prompt, 9},
          {2, 333, 8, 2, 128, {0, 1}, {332, 31}, 32},
          {2, 50, 4, 4, 80, {1, 1, 0}, {49, 48, 0}, 1}};
}

/// All tensors are filled with random values.
struct DecodeData {
  DecodeData(const Context& context, const DecodeCase& c, DType dtype)
      : qkv(context, dtype, {static_cast<int64_t>(c.positions.size()), (c.heads + 2 * c.groups) * c.dim}),
        k(context, dtype, {c.batch, c.length, c.groups, c.dim}),
        v(context, dtype, {c.batch, c.length, c.groups, c.dim}),
        sequences(context, DType::i32, {static_cast<int64_t>(c.positions.size())}),
        positions(context, DType::i32, {static_cast<int64_t>(c.positions.size())}),
        o(context, dtype, {static_cast<int64_t>(c.positions.size()), c.heads * c.dim}),
        window(c.window) {
    qkv.fill_normal(1), k.fill_normal(2), v.fill_normal(3);
    sequences.fill_ints(c.sequences), positions.fill_ints(c.positions);
  }
  kernels::CacheAppend append() { return {qkv, sequences, positions, {k, v}}; }
  kernels::AttentionDecode decode() { return {qkv, sequences, positions, {k, v}, kScale, o, window}; }

  /// Arguments for one row alone.
  kernels::AttentionDecode decode_row(int64_t r) {
    kernels::AttentionDecode args = decode();
    const auto row = [&](const Tensor& ids) { return Tensor{ids.as<int32_t>() + r, DType::i32, {1}}; };
    args.qkv = args.qkv.slice_rows(r, 1);
    args.sequences = row(args.sequences), args.positions = row(args.positions);
    args.o = args.o.slice_rows(r, 1);
    return args;
  }

  static constexpr float kScale = 0.3f;
  TestTensor qkv, k, v, sequences, positions, o;
  int64_t window;
};

inline std::vector<float> decode_expected(const DecodeCase& c, const std::vector<float>& qkv,
                                          const std::vector<float>& k, const std::vector<float>& v) {
  std::vector<float> out;
  const int64_t columns = (c.heads + 2 * c.groups) * c.dim;
  for (size_t r = 0; r < c.positions.size(); ++r) {
    for (int64_t head = 0; head < c.heads; ++head) {
      const auto place = [&](int64_t position) {
        return static_cast<size_t>(
            ((c.sequences[r] * c.length + position) * c.groups + head / (c.heads / c.groups)) * c.dim);
      };
      std::vector<double> sum(static_cast<size_t>(c.dim), 0.0);
      double total = 0;
      const int64_t first = c.window == 0 ? 0 : std::max<int64_t>(0, c.positions[r] + 1 - c.window);
      for (int64_t j = first; j <= c.positions[r]; ++j) {
        double dot = 0;
        for (int64_t d = 0; d < c.dim; ++d)
          dot += double{qkv[r * static_cast<size_t>(columns) + static_cast<size_t>(head * c.dim + d)]} *
                 k[place(j) + static_cast<size_t>(d)];
        const double p = std::exp(dot * DecodeData::kScale);
        total += p;
        for (int64_t d = 0; d < c.dim; ++d)
          sum[static_cast<size_t>(d)] += p * v[place(j) + static_cast<size_t>(d)];
      }
      for (const double value : sum) out.push_back(static_cast<float>(value / total));
    }
  }
  return out;
}

}  // namespace te::testing
