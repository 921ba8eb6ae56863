// Geometry of sharded tensors: which elements of a whole tensor a rank has saved, or wants to read.
//
// A tensor of shape [n0, n1, ...] counts as a matrix [rows = n0, cols = n1 * ...], a vector [n] as [n, 1] and a scalar
// as [1, 1]. Tensor parallelism cuts matrices into rows or columns, the distributed optimizer cuts what a rank has of
// them into runs of elements; both are a Block.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace te::checkpoint {

/// Elements [first, first + count) of the window of columns [col, col + width), all its rows taken in order:
/// element i of the window is row i / width, column col + i % width of the whole.
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

/// Calls copy(a_at, b_at, count) for every run of elements that both blocks hold: `count` elements from the a_at-th of
/// a on are those from the b_at-th of b on. One run where the windows are equal, else at most one per row.
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
                  b_row = row * b.width;  // index of the row's first element in either window
    const int64_t from = std::max(
        {a.col + std::max<int64_t>(0, a.first - a_row), b.col + std::max<int64_t>(0, b.first - b_row)});
    const int64_t to =
        std::min({a.col + std::min(a.width, a.end() - a_row), b.col + std::min(b.width, b.end() - b_row)});
    if (from < to) copy(a_row + from - a.col - a.first, b_row + from - b.col - b.first, to - from);
  }
}

/// True when no two blocks share an element and all lie within a tensor of `rows` x `cols`: blocks that together count
/// rows * cols elements then hold each of them once.
bool disjoint(const std::vector<Block>& blocks, int64_t rows, int64_t cols);

}  // namespace te::checkpoint
