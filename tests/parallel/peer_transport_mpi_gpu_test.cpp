// Transfers of tensor-parallel tokens with copy engines: work on a chunk sees the ranks' data, sums are bit-identical
// to FP32 sums in rank order, and nothing is overwritten before it has been read, independent of the ranks' timing.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "communicator_checks.h"
#include "gpu_of_rank.h"
#include "parallel/groups.h"
#include "parallel/watchdog.h"
#include "testing/mpi.h"

namespace te::testing {
namespace {

using parallel::Groups;
using parallel::PeerTransport;
using parallel::ProcessGrid;
using parallel::Watchdog;

constexpr int64_t kWidth = 48;
constexpr int64_t kMaxRows = 4096;  // rows of a shard

class CopiesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    TE_REQUIRE_GPU();
    if (size() == 1) GTEST_SKIP() << "needs a peer";
    groups_ = std::make_unique<Groups>(Groups::connect(world(), gpu(), ProcessGrid::of(size(), size(), 1, 1),
                                                       {.use_tensor_copy_engines = true}));
    // The full tensor of a gather, then the slots of a reduction.
    memory_ = DeviceBuffer(gpu(), 2 * half());
    // Before registration: after it, a faster rank may send its first addends.
    gpu().fill_bytes({memory_.data(), DType::u8, {static_cast<int64_t>(memory_.bytes())}}, 0xff);
    registered_ = copies().register_memory(gpu(), memory_.data(), memory_.bytes(), "test");
  }
  int size() const { return world().size(); }
  int rank() const { return world().rank(); }
  PeerTransport& copies() { return *groups_->tensor_peer_transport(); }
  size_t half() const { return static_cast<size_t>(size() * kMaxRows * kWidth) * sizeof(float); }

  Tensor full(DType dtype, int64_t rows) const { return {memory_.data(), dtype, {rows * size(), kWidth}}; }
  Tensor slots(DType dtype) const {
    return {static_cast<char*>(memory_.data()) + half(), dtype, {kMaxRows * (size() - 1), kWidth}};
  }
  std::vector<int> chunk_counts() const {
    std::vector<int> counts{1, size(), 2 * size(), 4 * size()};
    if (size() == 4) counts.push_back(2);
    return counts;
  }
  /// Gathers `shard`, and copies each chunk to `seen` in the chunk's work.
  void gather_into(const Tensor& seen, const Tensor& shard, int chunks) {
    const Tensor all = full(shard.dtype, shard.rows());
    copies().gather(gpu(), shard, all, chunks, [&](int64_t first, int64_t count) {
      gpu().copy(seen.slice_rows(first, count), all.slice_rows(first, count));
    });
  }
  /// Reduces; writes the addend chunk by chunk into memory that is filled with NaN.
  void reduce_from(const Tensor& source, const Tensor& addend, const Tensor& shard, int chunks,
                   const std::function<void()>& overlapped_work = {}) {
    gpu().fill_bytes(addend, 0xff);
    copies().reduce(
        gpu(), addend, shard, slots(shard.dtype), chunks,
        [&](int64_t first, int64_t count) {
          gpu().copy(addend.slice_rows(first, count), source.slice_rows(first, count));
        },
        overlapped_work);
  }
  std::vector<uint8_t> expected_sum(DType dtype, int64_t rows, uint64_t salt) const {
    return part_of(reduced_bytes(dtype, rows * size() * kWidth, size(), ReduceOp::sum, salt), rank(), size());
  }

  std::unique_ptr<Groups> groups_;
  DeviceBuffer memory_;
  std::unique_ptr<PeerTransport::RegisteredMemory> registered_;
};

TEST_F(CopiesTest, EveryChunkArrivesBeforeItsWork) {
  for (const DType dtype : {DType::e4m3, DType::bf16, DType::f32}) {
    for (const int chunks : chunk_counts()) {
      for (const int64_t rows : {int64_t{4}, int64_t{132}, kMaxRows}) {
        SCOPED_TRACE(::testing::Message()
                     << dtype_name(dtype) << ", " << chunks << " chunks, " << rows << " rows");
        const int64_t count = rows * kWidth;
        const std::vector<uint8_t> expected = bytes_of(dtype, gathered_values(dtype, count, size(), 5));
        TestTensor shard(gpu(), dtype, {rows, kWidth}), seen(gpu(), dtype, {rows * size(), kWidth});
        put(shard, rank_values(dtype, count, rank(), 5));
        const Watchdog::Guard guard(gpu(), "a gather");
        gpu().fill_bytes(full(dtype, rows), 0xff);
        gather_into(seen, shard, chunks);
        EXPECT_EQ(seen.raw(), expected);
        // In place, without work.
        const Tensor own = full(dtype, rows).slice_rows(rank() * rows, rows);
        gpu().fill_bytes(full(dtype, rows), 0xff);
        gpu().copy(own, shard);
        copies().gather(gpu(), own, full(dtype, rows), chunks, {});
        gpu().copy(seen, full(dtype, rows));
        EXPECT_EQ(seen.raw(), expected) << "in place";
      }
    }
  }
}

TEST_F(CopiesTest, SumsInRankOrder) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const int chunks : chunk_counts()) {
      for (const int64_t rows : {int64_t{4}, int64_t{132}, kMaxRows}) {
        for (const bool with_work : {false, true}) {
          SCOPED_TRACE(::testing::Message()
                       << dtype_name(dtype) << ", " << chunks << " chunks, " << rows << " rows");
          TestTensor source(gpu(), dtype, {rows * size(), kWidth}),
              addend(gpu(), dtype, {rows * size(), kWidth}), shard(gpu(), dtype, {rows, kWidth});
          put(source, rank_values(dtype, rows * size() * kWidth, rank(), 7));
          const Watchdog::Guard guard(gpu(), "a reduction");
          int calls = 0;
          reduce_from(source, addend, shard, chunks,
                      with_work ? [&calls] { ++calls; } : std::function<void()>{});
          EXPECT_EQ(shard.raw(), expected_sum(dtype, rows, 7));
          EXPECT_EQ(calls, with_work ? 1 : 0);
          EXPECT_EQ(addend.raw(), source.raw()) << "the addends must not be written";
        }
      }
    }
  }
}

// The host launches all rounds at once, and in every round a different rank is delayed: a write or read that is too
// early results in a wrong value of that round.
TEST_F(CopiesTest, ConsecutiveRoundsOfAllSizesAreCorrect) {
  constexpr int kRounds = 60;
  const std::vector<int> counts = chunk_counts();
  TestTensor delay(gpu(), DType::u8, {int64_t{256} << 20});
  for (int repeat = 0; repeat < 3; ++repeat) {
    std::vector<std::unique_ptr<TestTensor>> shards, seen, sources, sums;
    std::vector<int64_t> rows;
    for (int round = 0; round < kRounds; ++round) {
      rows.push_back(4 * (1 + (37 * round) % 101));
      const Shape part{rows.back(), kWidth}, all{rows.back() * size(), kWidth};
      const auto salt = static_cast<uint64_t>(100 + round);
      shards.push_back(std::make_unique<TestTensor>(gpu(), DType::e4m3, part));
      put(*shards.back(), rank_values(DType::e4m3, part.numel(), rank(), salt));
      seen.push_back(std::make_unique<TestTensor>(gpu(), DType::e4m3, all));
      sources.push_back(std::make_unique<TestTensor>(gpu(), DType::bf16, all));
      put(*sources.back(), rank_values(DType::bf16, all.numel(), rank(), salt));
      sums.push_back(std::make_unique<TestTensor>(gpu(), DType::bf16, part));
    }
    TestTensor addend(gpu(), DType::bf16, {4 * 101 * size(), kWidth});
    const Watchdog::Guard guard(gpu(), "rounds");
    gpu().synchronize();
    for (int round = 0; round < kRounds; ++round) {
      const auto i = static_cast<size_t>(round);
      const int chunks = counts[i % counts.size()];
      if (round % size() == rank())
        for (int fill = 0; fill < 4; ++fill) gpu().fill_bytes(delay, 0);
      gather_into(*seen[i], *shards[i], chunks);
      gpu().fill_bytes(*shards[i], 0xff);  // the shard may be overwritten after its gather
      if (round % 3 != 0) {
        const Tensor memory{addend.get().data, DType::bf16, {rows[i] * size(), kWidth}};
        reduce_from(*sources[i], memory, *sums[i], chunks,
                    round % 2 == 0 ? std::function<void()>([&] { gpu().fill_bytes(delay, 1); })
                                   : std::function<void()>{});
      }
    }
    gpu().synchronize();
    for (int round = 0; round < kRounds; ++round) {
      SCOPED_TRACE(round);
      const auto i = static_cast<size_t>(round);
      const auto salt = static_cast<uint64_t>(100 + round);
      EXPECT_EQ(seen[i]->raw(),
                bytes_of(DType::e4m3, gathered_values(DType::e4m3, rows[i] * kWidth, size(), salt)));
      if (round % 3 != 0) {
        EXPECT_EQ(sums[i]->raw(), expected_sum(DType::bf16, rows[i], salt));
      }
    }
  }
}

TEST_F(CopiesTest, RefusesUnregisteredMemory) {
  TestTensor own(gpu(), DType::bf16, {4, kWidth}), elsewhere(gpu(), DType::bf16, {4 * size(), kWidth});
  // The checks must fail before any counter changes, because the ranks' counts must stay equal.
  EXPECT_THROW(copies().gather(gpu(), own, elsewhere, 1, {}), InternalError);
  EXPECT_THROW(copies().gather(gpu(), own, full(DType::bf16, 4), 3 * size() + 1, {}), InternalError);
  gather_into(elsewhere, own, 1);
  gpu().synchronize();
}

TEST_F(CopiesTest, RefusesMemoryWithDifferentLayouts) {
  const DeviceBuffer memory(gpu(), size_t{4} << 20);
  EXPECT_THROW(copies().register_memory(gpu(), memory.data(), memory.bytes(), std::to_string(rank())),
               parallel::JobFailure);
}

}  // namespace
}  // namespace te::testing
