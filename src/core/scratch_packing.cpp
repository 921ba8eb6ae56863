#include "core/scratch_packing.h"

#include <algorithm>
#include <vector>

#include "core/error.h"

namespace te {

int64_t pack(std::span<ScratchBuffer> buffers, int64_t alignment) {
  std::vector<ScratchBuffer*> by_size;
  for (ScratchBuffer& buffer : buffers) by_size.push_back(&buffer);
  std::ranges::stable_sort(by_size, [](auto* a, auto* b) { return a->bytes > b->bytes; });

  std::vector<ScratchBuffer*> placed;  // sorted by offset
  int64_t total = 0;
  for (ScratchBuffer* buffer : by_size) {
    buffer->offset = 0;
    for (const ScratchBuffer* other : placed) {
      if (!other->lifetime.overlaps(buffer->lifetime)) continue;
      if (buffer->end() <= other->offset) break;
      buffer->offset = std::max(buffer->offset, (other->end() + alignment - 1) / alignment * alignment);
    }
    total = std::max(total, buffer->end());
    const auto above = [](auto* a, auto* b) { return a->offset < b->offset; };
    placed.insert(std::ranges::upper_bound(placed, buffer, above), buffer);
  }
  return (total + alignment - 1) / alignment * alignment;
}

void check_packing(std::span<const ScratchBuffer> buffers) {
  for (size_t i = 0; i < buffers.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const ScratchBuffer &a = buffers[j], &b = buffers[i];
      const bool common_bytes = std::max(a.offset, b.offset) < std::min(a.end(), b.end());
      TE_CHECK(!common_bytes || !a.lifetime.overlaps(b.lifetime),
               "scratch buffers {} and {} overlap in memory and have a common step", a.name, b.name);
    }
  }
}

}  // namespace te
