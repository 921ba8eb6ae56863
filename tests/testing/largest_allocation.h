// The largest single allocation of a thread, by an operator new that stands in place of the standard one: a damaged
// file must not talk a reader into a huge one. To be included by one source of an executable.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace te::testing {
/// Bytes; a test sets it to 0 before what it watches.
inline thread_local size_t largest_allocation = 0;
}  // namespace te::testing

// Not inlined, else GCC believes that free() meets memory of its own operator new.
[[gnu::noinline]] void* operator new(size_t bytes) {
  te::testing::largest_allocation = std::max(te::testing::largest_allocation, bytes);
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}
