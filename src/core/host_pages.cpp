#include "core/host_pages.h"

#include <sys/mman.h>

#include <cstdint>

namespace te {
namespace {

constexpr size_t kLargePage = size_t{2} << 20;

}  // namespace

void* map_host_pages(size_t bytes) {
  // Huge pages begin at multiples of their size; the part before the first one, if any, has small pages.
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return nullptr;
  madvise(data, bytes, MADV_HUGEPAGE);
  auto* const begin = static_cast<volatile char*>(data);
  const auto parts = static_cast<int64_t>((bytes + kLargePage - 1) / kLargePage);
  constexpr size_t kPage = 4096;
#pragma omp parallel for schedule(dynamic, 8)
  for (int64_t part = 0; part < parts; ++part) {
    const size_t first = static_cast<size_t>(part) * kLargePage;
    for (size_t at = first; at < first + kLargePage && at < bytes; at += kPage) begin[at] = 0;
  }
  return data;
}

void unmap_host_pages(void* data, size_t bytes) {
  munmap(data, bytes);
}

}  // namespace te
