// Records the largest single allocation of a thread by replacing operator new: a damaged file must not cause huge
// allocations. Include it in one source of an executable.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace te::testing {
/// Bytes; a test sets it to 0 before the code under test.
inline thread_local size_t largest_allocation = 0;
}  // namespace te::testing

// Not inlined, because GCC would warn about free() of memory from operator new.
[[gnu::noinline]] void* operator new(size_t bytes) {
  te::testing::largest_allocation = std::max(te::testing::largest_allocation, bytes);
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  te::testing::largest_allocation = std::max(te::testing::largest_allocation, bytes);
  return std::malloc(bytes == 0 ? 1 : bytes);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}
