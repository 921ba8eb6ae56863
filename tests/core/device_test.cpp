// Contexts and events on the CPU: options of side contexts, and synchronous execution.
#include "core/device.h"

#include <gtest/gtest.h>

#include <utility>

#include "testing/testing.h"

namespace te {
namespace {

using testing::TestTensor;

constexpr ExecutionOptions kUnusual{.gemm_autotune = GemmAutotune::cached, .deterministic_attention = false};

TEST(Context, PassesItsOptionsToSideContextsAndWhenMoved) {
  EXPECT_EQ(Context::cpu().options(), ExecutionOptions{});
  Context context = Context::cpu(kUnusual);
  EXPECT_EQ(context.options(), kUnusual);
  EXPECT_EQ(context.side().options(), kUnusual);
  EXPECT_EQ(context.side(true).side().options(), kUnusual);
  const Context moved = std::move(context);
  EXPECT_EQ(moved.options(), kUnusual);
  // Contexts of a process have separate options.
  EXPECT_EQ(Context::cpu().options(), ExecutionOptions{});
}

TEST(Context, CpuWorkIsSynchronous) {
  const Context context = Context::cpu(), side = context.side();
  EXPECT_FALSE(side.is_cuda());
  TestTensor a(context, DType::f32, {3}), b(context, DType::f32, {3});
  a.fill({1, 2, 3});
  Event event(context);
  EXPECT_TRUE(event.done());
  side.copy(b, a);
  event.record(side);
  EXPECT_TRUE(event.done());
  event.wait(context);
  EXPECT_EQ(b.floats(), (std::vector<float>{1, 2, 3}));
}

}  // namespace
}  // namespace te
