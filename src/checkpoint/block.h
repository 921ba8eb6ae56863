// Geometry of sharded tensors: the elements of a full tensor that a rank saved or reads.
//
// A tensor of shape [n0, n1, ...] is treated as a matrix [rows = n0, cols = n1 * ...], a vector [n] as [n, 1] and a
// scalar as [1, 1]. Tensor parallelism shards matrices by rows or columns; the distributed optimizer shards a rank's
// part of them into ranges of elements. A Block describes both.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace te::checkpoint {

/// Elements [first, first + count) of the window of columns [col, col + width), in row-major order: element i of the
/// window is row i / width, column col + i % width of the full tensor.
struct Block {
  int64_t col = 0;
  int64_t width = 1;
  int64_t first = 0;
  int64_t count = 0;
  bool operator==(const Block&) const = default;

  static Block rows(int64_t first_row, int64_t num_rows, int64_t cols) {
    return {0, cols, first_row * cols, num_rows * cols};
  }
  int64_t end() const { return first + count; }
};

/// Calls copy(a_at, b_at, count) for every run of elements that both blocks contain: elements [a_at, a_at + count) of a
/// equal elements [b_at, b_at + count) of b. There is one run if the windows are equal, else at most one per row.
template <class Copy>
void for_each_overlap(const Block& a, const Block& b, Copy&& copy) {
  if (a.col == b.col && a.width == b.width) {
    const int64_t from = std::max(a.first, b.first), to = std::min(a.end(), b.end());
    if (from < to) copy(from - a.first, from - b.first, to - from);
    return;
  }
  if (a.count == 0 || b.count == 0) return;
  const int64_t first_row = std::max(a.first / a.width, b.first / b.width);
  const int64_t last_row = std::min((a.end() - 1) / a.width, (b.end() - 1) / b.width);
  for (int64_t row = first_row; row <= last_row; ++row) {
    const int64_t a_row = row * a.width,
                  b_row = row * b.width;  // index of the row's first element in each window
    const int64_t from = std::max(
        {a.col + std::max<int64_t>(0, a.first - a_row), b.col + std::max<int64_t>(0, b.first - b_row)});
    const int64_t to =
        std::min({a.col + std::min(a.width, a.end() - a_row), b.col + std::min(b.width, b.end() - b_row)});
    if (from < to) copy(a_row + from - a.col - a.first, b_row + from - b.col - b.first, to - from);
  }
}

/// True if no two blocks have an element in common and all lie within a tensor of `rows` x `cols`. If their counts add
/// up to rows * cols, they contain each element exactly once.
bool disjoint(const std::vector<Block>& blocks, int64_t rows, int64_t cols);

}  // namespace te::checkpoint
