// Synchronization of CUDA streams by events, asynchronous copies, and CUDA graphs.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "core/device.h"
#include "core/device_graph.h"
#include "core/error.h"
#include "testing/testing.h"

namespace te {
namespace {

using testing::TestTensor;

constexpr int64_t kLarge = int64_t{1} << 28;  // large enough that kCopies copies outlast the host's calls
constexpr int kCopies = 200;

/// Keeps a CUDA stream busy for much longer than the host needs for a test's calls.
class Busy {
 public:
  explicit Busy(const Context& context)
      : from_(context, DType::u8, {kLarge}), to_(context, DType::u8, {kLarge}) {}
  void occupy(const Context& context) const {
    for (int i = 0; i < kCopies; ++i) context.copy(to_, from_);
  }

 private:
  TestTensor from_, to_;
};

TEST(EventGpu, SideStreamWaitsForTheRecordedPointButNotForLaterWork) {
  TE_REQUIRE_GPU();
  const Context context = Context::cuda(0), side = context.side(true);
  const Busy busy(context);
  TestTensor a(context, DType::f32, {1 << 20}), b(context, DType::f32, {1 << 20}),
      c(context, DType::f32, {1 << 20});
  a.fill_value(0.0f);
  b.fill_value(0.0f);
  c.fill_value(3.0f);
  context.synchronize();
  Event point(context), all(context);
  busy.occupy(context);
  context.copy(a, c);
  point.record(context);
  busy.occupy(context);
  all.record(context);
  point.wait(side);
  side.copy(b, a);
  side.synchronize();
  EXPECT_TRUE(point.done());
  EXPECT_FALSE(all.done()) << "the side stream has waited for work after the recorded point";
  EXPECT_EQ(b.floats()[0], 3.0f) << "the side stream has not waited";
  context.synchronize();
  EXPECT_TRUE(all.done());
}

// CUDA allocates small buffers; large ones are pages that te-train maps and locks. Copies are asynchronous for both.
TEST(HostBufferGpu, CopiesAreAsynchronous) {
  TE_REQUIRE_GPU();
  const Context context = Context::cuda(0);
  for (const size_t bytes : {size_t{1} << 20, size_t{200} << 20}) {
    const HostBuffer host(context, bytes);
    auto* const values = host.as<char>();
    values[0] = 1, values[bytes - 1] = 2;
    const TestTensor tensor(context, DType::u8, {static_cast<int64_t>(bytes)});
    const Busy busy(context);
    busy.occupy(context);
    context.copy_to_device(tensor, values);
    Event copied(context);
    copied.record(context);
    EXPECT_FALSE(copied.done()) << bytes << " bytes: the host has waited";
    context.synchronize();
    values[0] = values[bytes - 1] = 0;
    context.copy_to_host(values, tensor);
    context.synchronize();
    EXPECT_EQ(values[0], 1) << bytes;
    EXPECT_EQ(values[bytes - 1], 2) << bytes;
  }
}

// Each launch reads the current memory contents. A failed recording leaves the CUDA stream usable.
TEST(DeviceGraphGpu, LaunchesTheRecordedWork) {
  TE_REQUIRE_GPU();
  const Context context = Context::cuda(0);
  TestTensor a(context, DType::f32, {1000}), b(context, DType::f32, {1000});
  const HostBuffer host(context, 4000);
  const auto work = [&] {
    context.copy_to_device(a, host.as<float>());
    context.copy(b, a);
  };
  const auto set = [&](float value) { std::fill_n(host.as<float>(), 1000, value); };
  b.fill_value(1.0f);
  set(2.0f);
  DeviceGraph graph;
  graph.record(context, work);
  context.synchronize();
  EXPECT_EQ(b.floats()[999], 1.0f) << "recording has run the work";
  graph.launch(context);
  context.synchronize();
  EXPECT_EQ(b.floats()[999], 2.0f);
  set(3.0f);
  graph.launch(context);
  context.synchronize();
  EXPECT_EQ(b.floats()[999], 3.0f);
  DeviceGraph broken;
  EXPECT_THROW(broken.record(context, [] { user_error("failed"); }), UserError);
  EXPECT_FALSE(broken.recorded());
  set(4.0f);
  work();
  context.synchronize();
  EXPECT_EQ(b.floats()[999], 4.0f);
}

TEST(EventGpu, StreamsDoNotWaitForAnUnrecordedEvent) {
  TE_REQUIRE_GPU();
  const Context context = Context::cuda(0), side = context.side(true);
  const Busy busy(context);
  TestTensor a(context, DType::f32, {16});
  context.synchronize();
  Event all(context);
  all.wait(side);  // no effect: nothing is recorded yet
  busy.occupy(context);
  all.record(context);
  side.zero(a);
  side.synchronize();
  EXPECT_FALSE(all.done());
  context.synchronize();
  EXPECT_EQ(a.floats()[0], 0.0f);
}

TEST(ContextGpu, SideContextsHaveTheSameOptions) {
  TE_REQUIRE_GPU();
  const ExecutionOptions options{.gemm_autotune = GemmAutotune::off, .deterministic_attention = false};
  EXPECT_EQ(Context::cuda(0, options).side().options(), options);
  EXPECT_EQ(Context::cuda(0).options(), ExecutionOptions{});
}

}  // namespace
}  // namespace te
