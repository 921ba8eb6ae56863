#include "core/address_space.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <limits>

#include "testing/testing.h"

namespace te {
namespace {

TEST(AddressSpace, SubtractsUsageFromTheLimits) {
  if (testing::kSanitized) GTEST_SKIP() << "a sanitizer maps terabytes";
  const pid_t child = ::fork();
  if (child == 0) {
    const int64_t unlimited = free_address_space();
    const rlim_t limit = rlim_t{64} << 30;
    const struct rlimit space = {limit, limit}, data = {limit / 64, limit / 64};
    ::setrlimit(RLIMIT_AS, &space);
    const int64_t of_space = free_address_space();
    ::setrlimit(RLIMIT_DATA, &data);
    const int64_t of_data = free_address_space();
    const bool right = unlimited == std::numeric_limits<int64_t>::max() && of_space > int64_t{32} << 30 &&
                       of_space < int64_t{64} << 30 && of_data > int64_t{512} << 20 &&
                       of_data < int64_t{1} << 30;
    ::_exit(right ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace te
