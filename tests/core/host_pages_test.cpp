#include "core/host_pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <vector>

namespace te {
namespace {

// The sizes are not multiples of a page, small or huge.
TEST(HostPages, AreResidentAndZero) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  for (const size_t bytes : {size_t{1}, page + 1, (size_t{2} << 20) + 5, (size_t{9} << 20) - 3}) {
    auto* const data = static_cast<char*>(map_host_pages(bytes));
    ASSERT_NE(data, nullptr);
    std::vector<unsigned char> resident((bytes + page - 1) / page);
    ASSERT_EQ(mincore(data, bytes, resident.data()), 0);
    for (size_t i = 0; i < resident.size(); ++i)
      EXPECT_EQ(resident[i] & 1, 1) << bytes << " bytes, page " << i;
    for (size_t i = 0; i < bytes; ++i) ASSERT_EQ(data[i], 0) << i;
    data[bytes - 1] = 1;
    unmap_host_pages(data, bytes);
    EXPECT_NE(mincore(data, bytes, resident.data()), 0);
  }
}

TEST(HostPages, NullIfTheKernelRefuses) {
  EXPECT_EQ(map_host_pages(size_t{1} << 60), nullptr);
}

}  // namespace
}  // namespace te
