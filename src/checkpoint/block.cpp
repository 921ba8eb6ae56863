#include "checkpoint/block.h"

#include <algorithm>

namespace te::checkpoint {
namespace {

struct Rectangle {
  int64_t top, bottom, left, right;  ///< [top, bottom) x [left, right)
};

/// A block is at most three rectangles: the end of its first row, complete rows, the start of its last row.
void append_rectangles(const Block& block, std::vector<Rectangle>& result) {
  int64_t at = block.first;
  while (at < block.end()) {
    const int64_t row = at / block.width, within = at % block.width;
    const int64_t whole_rows = within == 0 ? (block.end() - at) / block.width : 0;
    if (whole_rows > 0) {
      result.push_back({row, row + whole_rows, block.col, block.col + block.width});
      at += whole_rows * block.width;
    } else {
      const int64_t count = std::min(block.width - within, block.end() - at);
      result.push_back({row, row + 1, block.col + within, block.col + within + count});
      at += count;
    }
  }
}

}  // namespace

// Sweeps over the rows: a rectangle must not have columns in common with those still open when it begins.
bool disjoint(const std::vector<Block>& blocks, int64_t rows, int64_t cols) {
  std::vector<Rectangle> rectangles;
  for (const Block& block : blocks) {
    if (block.col < 0 || block.width < 1 || block.col > cols - block.width) return false;
    if (block.first < 0 || block.count < 0 || block.first > rows * block.width - block.count) return false;
    append_rectangles(block, rectangles);
  }
  std::ranges::sort(rectangles, {}, &Rectangle::top);
  std::vector<Rectangle> open;
  for (const Rectangle& next : rectangles) {
    std::erase_if(open, [&](const Rectangle& old) { return old.bottom <= next.top; });
    for (const Rectangle& old : open)
      if (old.left < next.right && next.left < old.right) return false;
    open.push_back(next);
  }
  return true;
}

}  // namespace te::checkpoint
