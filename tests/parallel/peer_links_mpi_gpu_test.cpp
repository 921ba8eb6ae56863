// Pipeline links with copy engines: tensors arrive unchanged and in order, and none is overwritten before it has been
// received, independent of the stages' timing and of the number of receive buffers.
#include <array>
#include <deque>
#include <memory>

#include "communicator_checks.h"
#include "gpu_of_rank.h"
#include "parallel/groups.h"
#include "parallel/watchdog.h"
#include "testing/mpi.h"

namespace te::testing {
namespace {

using parallel::Channel;
using parallel::Groups;
using parallel::PeerLinks;
using parallel::ProcessGrid;
using parallel::Watchdog;

constexpr int kBuffers = 3;
constexpr int64_t kMessageWidth = 64;

class LinksTest : public ::testing::Test {
 protected:
  void SetUp() override {
    TE_REQUIRE_GPU();
    if (size() == 1) GTEST_SKIP() << "one stage has no links";
    groups_ = std::make_unique<Groups>(Groups::connect(world(), gpu(), ProcessGrid::of(size(), 1, 1, size()),
                                                       {.use_pipeline_copy_engines = true}));
    ASSERT_NE(groups_->pipeline_peer_links(), nullptr);
    lanes_.emplace_back();
    lanes_.emplace_back();
  }
  int size() const { return world().size(); }
  int rank() const { return world().rank(); }
  int next() const { return (rank() + 1) % size(); }
  int previous() const { return (rank() + size() - 1) % size(); }
  PeerLinks& links() { return *groups_->pipeline_peer_links(); }

  /// Registers receive buffers of `rows` rows of FP32.
  void register_buffers(int64_t rows, int buffers = kBuffers) {
    registered_buffers_.reset();
    const Shape shape{2 * buffers * rows, kMessageWidth};
    memory_ = DeviceBuffer(gpu(), static_cast<size_t>(shape.numel()) * sizeof(float));
    const Tensor all{memory_.data(), DType::f32, shape};
    gpu().fill_bytes(all, 0xff);
    registered_buffers_ = links().register_buffers(gpu(), all, buffers);
  }
  static uint64_t salt(int round, bool forward) {
    return static_cast<uint64_t>(2 * round + (forward ? 1 : 0));
  }
  /// As in a training step: waits for a free receive buffer, fills the send buffer, and sends it on its lane.
  void send(const Tensor& source, int round, Channel to) {
    Lane& lane = lanes_[to == Channel::forward_to_next ? 0 : 1];
    const Tensor buffer = lane.buffer(round, source);
    links().wait_until_free(gpu(), to);
    lane.done[static_cast<size_t>(round % 2)].wait(gpu());
    gpu().copy(buffer, source);
    lane.start.record(gpu());
    lane.start.wait(lane.stream);
    links().send(lane.stream, buffer, to);
    lane.done[static_cast<size_t>(round % 2)].record(lane.stream);
  }
  /// Receives into memory that is filled with NaN.
  void receive(const Tensor& into, Channel from) {
    gpu().fill_bytes(into, 0xff);
    links().receive(gpu(), into, from);
  }
  /// Expects the data that neighbor `from` sent in this round.
  void expect(TestTensor& arrived, int from, int round, bool forward) {
    const Tensor& t = arrived.get();
    EXPECT_EQ(arrived.raw(), bytes_of(t.dtype, rank_values(t.dtype, t.numel(), from, salt(round, forward))))
        << "round " << round << (forward ? ", forward" : ", backward");
  }

  struct Lane {
    Context stream = gpu().side(true);
    Event start{gpu()};
    std::array<Event, 2> done{Event(gpu()), Event(gpu())};
    TestTensor memory{gpu(), DType::u8, {2, int64_t{32} << 20}};
    Tensor buffer(int round, const Tensor& like) const {
      return {memory.get().slice_rows(round % 2, 1).data, like.dtype, like.shape};
    }
  };
  std::unique_ptr<Groups> groups_;
  std::deque<Lane> lanes_;  ///< forward and backward
  DeviceBuffer memory_;
  std::unique_ptr<PeerLinks::RegisteredBuffers> registered_buffers_;
};

// Tensors of several dtypes, from one row to tens of MiB, one after another in both directions.
TEST_F(LinksTest, TransferTensorsUnchanged) {
  constexpr int64_t kMax = int64_t{24} << 12;  // 24 MiB
  register_buffers(kMax);
  int round = 0;
  for (const DType dtype : {DType::bf16, DType::f32}) {
    for (const int64_t rows : {int64_t{1}, int64_t{100}, kMax}) {
      SCOPED_TRACE(::testing::Message() << dtype_name(dtype) << ", " << rows << " rows");
      const Shape shape{rows, kMessageWidth};
      TestTensor forward(gpu(), dtype, shape), backward(gpu(), dtype, shape),
          from_previous(gpu(), dtype, shape), from_next(gpu(), dtype, shape);
      put(forward, rank_values(dtype, rows * kMessageWidth, rank(), salt(round, true)));
      put(backward, rank_values(dtype, rows * kMessageWidth, rank(), salt(round, false)));
      const Watchdog::Guard guard(gpu(), "a message");
      send(forward, round, Channel::forward_to_next);
      send(backward, round, Channel::backward_to_previous);
      receive(from_previous, Channel::forward_from_previous);
      receive(from_next, Channel::backward_from_next);
      gpu().synchronize();
      expect(from_previous, previous(), round, true);
      expect(from_next, next(), round, false);
      ++round;
    }
  }
}

// The host launches all rounds at once, and in every round a different stage is delayed. Sends run ahead of receives by
// the number of receive buffers: a write or read that is too early results in a wrong value of its round.
TEST_F(LinksTest, ConsecutiveRoundsOfAllSizesAreCorrect) {
  constexpr int kRounds = 48;
  TestTensor delay(gpu(), DType::u8, {int64_t{256} << 20});
  for (const int buffers : {1, 2, kBuffers}) {
    SCOPED_TRACE(buffers);
    // Number of sends ahead of the receive of a round: 0 with one buffer, otherwise all stages would wait for each
    // other.
    const int ahead = buffers - 1;
    register_buffers(4 * 101, buffers);
    std::deque<TestTensor> forward, backward, from_previous, from_next;
    for (int round = 0; round < kRounds; ++round) {
      const int64_t rows = 4 * (1 + (37 * round) % 101);
      for (auto* messages : {&forward, &backward, &from_previous, &from_next})
        messages->emplace_back(gpu(), DType::bf16, Shape{rows, kMessageWidth});
      put(forward.back(), rank_values(DType::bf16, rows * kMessageWidth, rank(), salt(round, true)));
      put(backward.back(), rank_values(DType::bf16, rows * kMessageWidth, rank(), salt(round, false)));
    }
    const Watchdog::Guard guard(gpu(), "rounds");
    gpu().synchronize();
    const auto send_round = [&](int round) {
      const auto i = static_cast<size_t>(round);
      send(forward[i], round, Channel::forward_to_next);
      send(backward[i], round, Channel::backward_to_previous);
    };
    for (int round = 0; round < ahead; ++round) send_round(round);
    for (int round = 0; round < kRounds; ++round) {
      const auto i = static_cast<size_t>(round);
      if (round + ahead < kRounds) send_round(round + ahead);
      if (round % size() == rank())
        for (int fill = 0; fill < 4; ++fill) gpu().fill_bytes(delay, 0);
      receive(from_previous[i], Channel::forward_from_previous);
      if (round % 3 == 0) gpu().fill_bytes(delay, 1);
      receive(from_next[i], Channel::backward_from_next);
    }
    gpu().synchronize();
    for (int round = 0; round < kRounds; ++round) {
      const auto i = static_cast<size_t>(round);
      expect(from_previous[i], previous(), round, true);
      expect(from_next[i], next(), round, false);
    }
  }
}

// A stage that has filled all receive buffers of a delayed stage continues with other work, and no tensor is lost.
TEST_F(LinksTest, SendersRunAheadOfADelayedReceiver) {
  register_buffers(16);
  TestTensor delay(gpu(), DType::u8, {int64_t{1} << 30});
  std::deque<TestTensor> sent, arrived;
  for (int round = 0; round < kBuffers; ++round) {
    for (auto* messages : {&sent, &arrived})
      messages->emplace_back(gpu(), DType::f32, Shape{16, kMessageWidth});
    put(sent.back(), rank_values(DType::f32, 16 * kMessageWidth, rank(), salt(round, true)));
  }
  gpu().synchronize();
  const Watchdog::Guard guard(gpu(), "a late receiver");
  for (int round = 0; round < kBuffers; ++round)
    send(sent[static_cast<size_t>(round)], round, Channel::forward_to_next);
  if (rank() % 2 == 0)
    for (int fill = 0; fill < 50; ++fill) gpu().fill_bytes(delay, 0);
  for (int round = 0; round < kBuffers; ++round)
    receive(arrived[static_cast<size_t>(round)], Channel::forward_from_previous);
  gpu().synchronize();
  for (int round = 0; round < kBuffers; ++round)
    expect(arrived[static_cast<size_t>(round)], previous(), round, true);
}

// Registers different sizes and numbers of buffers one after another; the links' counts continue.
TEST_F(LinksTest, BuffersMayBeReplaced) {
  for (const int buffers : {2, 5, 3}) {
    register_buffers(64, buffers);
    for (int round = 0; round < 7; ++round) {
      TestTensor sent(gpu(), DType::f32, {64, kMessageWidth}),
          arrived(gpu(), DType::f32, {64, kMessageWidth});
      put(sent, rank_values(DType::f32, 64 * kMessageWidth, rank(), salt(round, true)));
      const Watchdog::Guard guard(gpu(), "a message");
      send(sent, round, Channel::forward_to_next);
      receive(arrived, Channel::forward_from_previous);
      gpu().synchronize();
      expect(arrived, previous(), round, true);
    }
  }
}

TEST_F(LinksTest, RefusesMisuse) {
  TestTensor small(gpu(), DType::f32, {4, kMessageWidth}), large(gpu(), DType::f32, {5, kMessageWidth});
  EXPECT_THROW(links().send(gpu(), small, Channel::forward_to_next), InternalError) << "no buffers";
  register_buffers(4);
  EXPECT_THROW(links().send(gpu(), large, Channel::forward_to_next), InternalError);
  EXPECT_THROW(links().receive(gpu(), large, Channel::forward_from_previous), InternalError);
  EXPECT_THROW(links().send(gpu(), small, Channel::forward_from_previous), InternalError);
  EXPECT_THROW(links().receive(gpu(), small, Channel::forward_to_next), InternalError);
  EXPECT_THROW(links().register_buffers(gpu(), small, 2), InternalError) << "already registered";
  // The failed calls have not changed the counts.
  put(small, rank_values(DType::f32, 4 * kMessageWidth, rank(), salt(0, true)));
  TestTensor arrived(gpu(), DType::f32, {4, kMessageWidth});
  const Watchdog::Guard guard(gpu(), "a message");
  send(small, 0, Channel::forward_to_next);
  receive(arrived, Channel::forward_from_previous);
  gpu().synchronize();
  expect(arrived, previous(), 0, true);
}

TEST_F(LinksTest, RefusesDifferentNumbersOfBuffers) {
  const DeviceBuffer memory(gpu(), size_t{4} << 20);
  const Tensor all{memory.data(), DType::u8, {static_cast<int64_t>(memory.bytes())}};
  EXPECT_THROW(links().register_buffers(gpu(), all, rank() == 0 ? 1 : 2), parallel::JobFailure);
}

}  // namespace
}  // namespace te::testing
