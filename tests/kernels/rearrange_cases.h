// Inputs and expected results of the rearranging copies, for both backends.
#pragma once

#include <numeric>
#include <vector>

#include "kernels/rearrange/rearrange.h"
#include "testing/testing.h"

namespace te::kernels {

using te::testing::TestTensor;

struct ChunksCase {
  int64_t rows, chunks, cols, begin, after, at,
      padding;  ///< widths: begin + chunks * cols + after, at + cols + padding
};
// Multiples of 8 elements: 16 bytes in BF16.
inline const ChunksCase kChunks[] = {{1, 1, 8, 0, 0, 0, 0},
                                     {5, 1, 16, 24, 0, 0, 0},
                                     {7, 2, 8, 0, 8, 8, 16},
                                     {33, 4, 64, 16, 24, 8, 0},
                                     {260, 3, 128, 8, 8, 0, 8}};

inline void check_column_chunks(const Context& context, DType dtype, const ChunksCase& c, bool join) {
  SCOPED_TRACE(::testing::Message() << c.rows << " rows, " << c.chunks << " chunks of " << c.cols
                                    << (join ? ", joined, " : ", ") << dtype_name(dtype));
  const int64_t width = c.begin + c.chunks * c.cols + c.after, part_width = c.at + c.cols + c.padding;
  TestTensor full(context, dtype, {c.rows, width}), parts(context, dtype, {c.chunks, c.rows, part_width});
  full.fill_normal(1), parts.fill_normal(2);
  std::vector<float> w = full.floats(), p = parts.floats();
  for (int64_t chunk = 0; chunk < c.chunks; ++chunk) {
    for (int64_t r = 0; r < c.rows; ++r) {
      for (int64_t i = 0; i < c.cols; ++i) {
        float& in_full = w[static_cast<size_t>(r * width + c.begin + chunk * c.cols + i)];
        float& in_part = p[static_cast<size_t>((chunk * c.rows + r) * part_width + c.at + i)];
        (join ? in_full : in_part) = join ? in_part : in_full;
      }
    }
  }
  column_chunks(context, {full, parts, c.begin, c.at, c.cols, join});
  EXPECT_EQ(full.floats(), w);
  EXPECT_EQ(parts.floats(), p);
}

struct BlockCase {
  int64_t groups, rows, above, below, part_above, part_below, left, cols, right;
};
inline const BlockCase kBlocks[] = {{1, 1, 0, 0, 0, 0, 0, 8, 0},
                                    {1, 5, 3, 0, 0, 2, 8, 8, 16},
                                    {7, 20, 20, 4, 0, 0, 0, 16, 16},
                                    {130, 33, 1, 2, 3, 4, 24, 8, 0}};

inline void check_copy_block(const Context& context, DType dtype, const BlockCase& c, bool to_full) {
  SCOPED_TRACE(::testing::Message() << c.groups << " groups of " << c.rows << " rows, " << c.cols
                                    << " columns, " << dtype_name(dtype)
                                    << (to_full ? ", to full" : ", to part"));
  const int64_t rows = c.above + c.rows + c.below, part_rows = c.part_above + c.rows + c.part_below,
                width = c.left + c.cols + c.right;
  TestTensor full(context, dtype, {c.groups, rows, width}),
      part(context, dtype, {c.groups, part_rows, c.cols});
  full.fill_normal(1), part.fill_normal(2);
  std::vector<float> f = full.floats(), p = part.floats();
  for (int64_t g = 0; g < c.groups; ++g) {
    for (int64_t r = 0; r < c.rows; ++r) {
      for (int64_t i = 0; i < c.cols; ++i) {
        float& in_full = f[static_cast<size_t>((g * rows + c.above + r) * width + c.left + i)];
        float& in_part = p[static_cast<size_t>((g * part_rows + c.part_above + r) * c.cols + i)];
        (to_full ? in_full : in_part) = to_full ? in_part : in_full;
      }
    }
  }
  copy_block(context, {full, part, c.above, c.left, c.part_above, c.rows, to_full});
  EXPECT_EQ(full.floats(), f);
  EXPECT_EQ(part.floats(), p);
}

inline void check_row_order(const Context& context, DType dtype, int64_t rows, int64_t cols, bool inverse) {
  SCOPED_TRACE(::testing::Message() << rows << " x " << cols << (inverse ? ", back, " : ", ")
                                    << dtype_name(dtype));
  TestTensor a(context, dtype, {rows, cols}), b(context, dtype, {rows, cols}),
      index(context, DType::i32, {rows});
  a.fill_normal(1), b.fill_normal(2);
  std::vector<int32_t> order(static_cast<size_t>(rows));
  for (int64_t r = 0; r < rows; ++r) order[static_cast<size_t>(r)] = static_cast<int32_t>((r * 7 + 3) % rows);
  index.fill_ints(order);
  std::vector<float> from = (inverse ? b : a).floats(), expected(from.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      const auto place = static_cast<size_t>(order[static_cast<size_t>(r)] * cols + c);
      const auto row = static_cast<size_t>(r * cols + c);
      expected[inverse ? row : place] = from[inverse ? place : row];
    }
  }
  row_order(context, {.rows = a, .index = index, .ordered = b, .inverse = inverse});
  EXPECT_EQ((inverse ? a : b).floats(), expected);
}

/// Numbers of rows are not multiples of 7, so that the order holds each row once.
inline void check_rearrangements(const Context& context) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const bool back : {false, true}) {
      for (const ChunksCase& c : kChunks) check_column_chunks(context, dtype, c, back);
      for (const BlockCase& c : kBlocks) check_copy_block(context, dtype, c, back);
      for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1, 8}, {5, 16}, {64, 40}, {513, 264}})
        check_row_order(context, dtype, rows, cols, back);
    }
  }
}

}  // namespace te::kernels
