#include "rearrange_cases.h"

namespace te::kernels {
namespace {

TEST(RearrangeGpu, MovesOnlyTheGivenElements) {
  TE_REQUIRE_GPU();
  check_rearrangements(Context::cuda(0));
}

}  // namespace
}  // namespace te::kernels
