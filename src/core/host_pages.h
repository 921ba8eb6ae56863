// Large blocks of host memory whose pages are all there: for page-locking, which otherwise makes them one by one on one
// thread, 4 KiB at a time.
#pragma once

#include <cstddef>

namespace te {

/// From here on making pages in parallel is worth it.
constexpr size_t kManyHostBytes = size_t{64} << 20;

/// Zeros, in large pages where the kernel gives them, made by all OpenMP threads. Null: the kernel refuses.
void* map_host_pages(size_t bytes);
void unmap_host_pages(void* data, size_t bytes);

}  // namespace te
