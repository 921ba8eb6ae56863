// Large blocks of host memory with all pages faulted in. Page-locking would otherwise fault them in on one thread,
// 4 KiB at a time.
#pragma once

#include <cstddef>

namespace te {

/// Smallest block for which faulting pages in on several threads pays off.
constexpr size_t kManyHostBytes = size_t{64} << 20;

/// Maps zeroed memory, with huge pages if the kernel provides them; all OpenMP threads fault the pages in. Null if the
/// kernel refuses.
void* map_host_pages(size_t bytes);
void unmap_host_pages(void* data, size_t bytes);

}  // namespace te
