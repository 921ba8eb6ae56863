// Compares NcclCommunicator, with one rank per GPU, to MpiCommunicator with the same inputs. Operations that only move
// bytes are equal bit for bit; sums are equal within the rounding error of a different summation order.
#include <algorithm>
#include <numeric>

#include "communicator_checks.h"
#include "gpu_of_rank.h"
#include "parallel/groups.h"
#include "parallel/placement.h"
#include "parallel/watchdog.h"
#include "testing/mpi.h"

namespace te::testing {
namespace {

using parallel::Channel;
using parallel::Groups;
using parallel::ProcessGrid;
using parallel::ScopedActivity;
using parallel::Watchdog;

class NcclTest : public ::testing::Test {
 protected:
  void SetUp() override {
    TE_REQUIRE_GPU();
    std::vector<int> all(static_cast<size_t>(world().size()));
    std::iota(all.begin(), all.end(), 0);
    const ProcessGrid grid = ProcessGrid::of(world().size(), 1, 1, 1);
    groups_ = std::make_unique<Groups>(Groups::connect(world(), gpu(), grid));
    cpu_groups_ = std::make_unique<Groups>(Groups::connect(world(), cpu_, grid));
  }
  Communicator& group() { return groups_->world(); }
  Communicator& mpi() { return cpu_groups_->world(); }
  int size() const { return world().size(); }
  int rank() const { return world().rank(); }

  const Context cpu_ = Context::cpu();
  std::unique_ptr<Groups> groups_, cpu_groups_;
};

/// Bound for the difference of two summation orders of n values. FP32: n roundings of the largest partial sum (n * 4
/// here), 2^-24 each. BF16: NCCL may round to BF16 at each hop, so n roundings of 2^-8 each.
double sum_bound(DType dtype, int ranks) {
  const double largest = 4.0 * ranks;
  return dtype == DType::i32 ? 0 : ranks * largest * (dtype == DType::f32 ? 0x1p-23 : 0x1p-8);
}

void expect_close(const TestTensor& actual, const TestTensor& expected, double bound) {
  const std::vector<float> a = actual.floats(), b = expected.floats();
  ASSERT_EQ(a.size(), b.size());
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i)
    worst = std::max(worst, std::isnan(a[i]) ? 1e30 : std::fabs(double(a[i]) - b[i]));
  EXPECT_LE(worst, bound);
}

TEST_F(NcclTest, AllReduce) {
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max}) {
    for (const DType dtype : kReducedDTypes) {
      for (const int64_t count : kCounts) {
        SCOPED_TRACE(::testing::Message() << dtype_name(dtype) << " x " << count);
        TestTensor device(gpu(), dtype, {count}), host(cpu_, dtype, {count}), again(gpu(), dtype, {count});
        for (TestTensor* t : {&device, &host, &again}) put(*t, rank_values(dtype, count, rank()));
        group().all_reduce(gpu(), device, op);
        mpi().all_reduce(cpu_, host, op);
        if (op == ReduceOp::max) {
          EXPECT_EQ(device.raw(), host.raw());
        } else {
          expect_close(device, host, sum_bound(dtype, size()));
        }
        group().all_reduce(gpu(), again, op);
        const std::vector<uint8_t> bytes = device.raw();
        EXPECT_EQ(again.raw(), bytes) << "repeated";
        // All ranks have the same bits.
        const std::string text(bytes.begin(), bytes.end());
        EXPECT_EQ(world().broadcast_string(text), text);
      }
    }
  }
}

TEST_F(NcclTest, ReduceScatter) {
  for (const DType dtype : kReducedDTypes) {
    for (const int64_t count : kCounts) {
      SCOPED_TRACE(::testing::Message() << dtype_name(dtype) << " x " << count);
      TestTensor in(gpu(), dtype, {count * size()}), out(gpu(), dtype, {count});
      TestTensor host_in(cpu_, dtype, {count * size()}), host_out(cpu_, dtype, {count});
      put(in, rank_values(dtype, count * size(), rank(), 1));
      put(host_in, rank_values(dtype, count * size(), rank(), 1));
      group().reduce_scatter(gpu(), in, out);
      mpi().reduce_scatter(cpu_, host_in, host_out);
      expect_close(out, host_out, sum_bound(dtype, size()));
      // In place: the same bits, and the rest of `in` is unchanged.
      std::vector<uint8_t> expected = in.raw();
      const std::vector<uint8_t> part = out.raw();
      std::copy(part.begin(), part.end(),
                expected.begin() + static_cast<std::ptrdiff_t>(part.size()) * rank());
      group().reduce_scatter(gpu(), in, part_of(in.get(), rank(), size()));
      EXPECT_EQ(in.raw(), expected) << "in place";
    }
  }
}

TEST_F(NcclTest, AllGather) {
  check_all_gather(gpu(), group());
}

TEST_F(NcclTest, AllToAll) {
  check_all_to_all(gpu(), group());
  check_all_to_all_of_rows(gpu(), group());
}

TEST_F(NcclTest, BarrierAndEmptyTensors) {
  const Tensor none{nullptr, DType::f32, {0}};
  group().all_reduce(gpu(), none, ReduceOp::sum);
  group().barrier(gpu());
  const ScopedActivity activity("barrier test");
  const Watchdog::Guard guard(gpu(), "barrier test");
  gpu().synchronize();
}

TEST_F(NcclTest, ChannelsTransferBothDirectionsConcurrently) {
  if (size() < 2) GTEST_SKIP() << "needs a pipeline";
  const Groups groups = Groups::connect(world(), gpu(), ProcessGrid::of(size(), 1, 1, size()));
  const int next = (rank() + 1) % size(), previous = (rank() + size() - 1) % size();
  constexpr int kMessages = 3;
  constexpr int64_t kCount = (int64_t{8} << 20) + 3;  // far above NCCL's buffer size
  // One CUDA stream per channel. All ranks launch their sends before their receives.
  const Context forward_out = gpu().side(true), forward_in = gpu().side(true),
                backward_out = gpu().side(true), backward_in = gpu().side(true);
  std::vector<std::unique_ptr<TestTensor>> sent, from_previous, from_next;
  for (int message = 0; message < kMessages; ++message) {
    for (const bool forward : {true, false}) {
      sent.push_back(std::make_unique<TestTensor>(gpu(), DType::bf16, Shape{kCount}));
      put(*sent.back(),
          rank_values(DType::bf16, kCount, rank(), static_cast<uint64_t>(2 * message + (forward ? 1 : 0))));
    }
    from_previous.push_back(std::make_unique<TestTensor>(gpu(), DType::bf16, Shape{kCount}));
    from_next.push_back(std::make_unique<TestTensor>(gpu(), DType::bf16, Shape{kCount}));
  }
  gpu().synchronize();
  for (int message = 0; message < kMessages; ++message) {
    const auto index = static_cast<size_t>(message);
    groups.send(forward_out, *sent[2 * index], Channel::forward_to_next);
    groups.send(backward_out, *sent[2 * index + 1], Channel::backward_to_previous);
  }
  for (int message = 0; message < kMessages; ++message) {
    const auto index = static_cast<size_t>(message);
    groups.receive(backward_in, *from_next[index], Channel::backward_from_next);
    groups.receive(forward_in, *from_previous[index], Channel::forward_from_previous);
  }
  {
    const Watchdog::Guard guard(gpu(), "channels");
    for (const Context* context : {&forward_out, &forward_in, &backward_out, &backward_in})
      context->synchronize();
  }
  for (int message = 0; message < kMessages; ++message) {
    const auto salt = static_cast<uint64_t>(2 * message);
    const auto index = static_cast<size_t>(message);
    EXPECT_EQ(from_previous[index]->raw(),
              bytes_of(DType::bf16, rank_values(DType::bf16, kCount, previous, salt + 1)));
    EXPECT_EQ(from_next[index]->raw(), bytes_of(DType::bf16, rank_values(DType::bf16, kCount, next, salt)));
  }
}

TEST_F(NcclTest, SideStreamsAndEventsOrderWork) {
  // A copy on the main CUDA stream, a reduction on a side stream, and a copy of the result on the main stream, without
  // waiting on the host.
  const Context side = gpu().side(true);
  EXPECT_FALSE(side.gemm_workspace());
  EXPECT_NE(side.stream(), gpu().stream());
  constexpr int64_t kCount = 1 << 22;
  TestTensor source(gpu(), DType::i32, {kCount}), work(gpu(), DType::i32, {kCount}),
      result(gpu(), DType::i32, {kCount});
  source.fill_ints(std::vector<int32_t>(kCount, 1));
  Event ready(gpu()), reduced(gpu());
  EXPECT_TRUE(ready.done());
  for (int repetition = 0; repetition < 10; ++repetition) {
    gpu().fill_bytes(work, 0xff);
    gpu().copy(work, source);
    ready.record(gpu());
    ready.wait(side);
    group().all_reduce(side, work, ReduceOp::sum);
    reduced.record(side);
    reduced.wait(gpu());
    gpu().copy(result, work);
  }
  const std::vector<float> values = result.floats();
  EXPECT_TRUE(reduced.done());
  EXPECT_EQ(std::ranges::count(values, static_cast<float>(size())), kCount);
}

TEST_F(NcclTest, BindingTableHasTheDeviceNames) {
  const std::string table = parallel::binding_table(world(), gpu(), ProcessGrid::of(world().size(), 1, 1, 1));
  if (world().leader()) std::printf("%s", table.c_str());
  EXPECT_NE(table.find(gpu().info().name), std::string::npos);
  EXPECT_FALSE(gpu().info().bus_id.empty());
}

TEST_F(NcclTest, PlacementHasTheLinksBetweenGpus) {
  const parallel::Placement placement = parallel::find_placement(world(), gpu());
  if (world().leader())
    for (const std::string& line : parallel::host_lines(placement, 4)) std::printf("%s\n", line.c_str());
  ASSERT_EQ(placement.size(), 1u);
  EXPECT_EQ(placement[0].ranks.size(), static_cast<size_t>(world().size()));
  EXPECT_NE(placement[0].devices.find(gpu().info().name), std::string::npos) << placement[0].devices;
  const bool one_gpu = world().size() == 1 || cuda_device_count() == 1;  // ranks may share it
  EXPECT_EQ(placement[0].link.empty(), one_gpu) << placement[0].link;
  if (one_gpu) return;
  EXPECT_EQ(placement[0].link.find("unknown"), std::string::npos) << placement[0].link;
  // Hopper has up to 18 NVLinks with 25 GB/s each; the lower bound allows PCIe of generation 3 or later.
  EXPECT_GE(placement[0].link_bytes_per_second, 1e9);
  EXPECT_LE(placement[0].link_bytes_per_second, 450e9);
}

}  // namespace
}  // namespace te::testing
