// Operations of MpiCommunicator on all ranks (SingleCommunicator with one rank): every dtype, unaligned sizes, in place
// and out of place, bit for bit.
#include "parallel/communicator.h"

#include <algorithm>
#include <limits>

#include "communicator_checks.h"
#include "parallel/mpi_communicator.h"
#include "testing/mpi.h"

namespace te::testing {
namespace {

using parallel::MpiCommunicator;
using parallel::SingleCommunicator;

class CommunicatorTest : public ::testing::Test {
 protected:
  CommunicatorTest() {
    std::vector<int> all;
    for (int rank = 0; rank < world().size(); ++rank) all.push_back(rank);
    if (all.size() == 1) {
      group_ = std::make_unique<SingleCommunicator>("world", 0);
    } else {
      group_ = std::make_unique<MpiCommunicator>(world(), "world", all);
    }
  }
  Communicator& group() { return *group_; }
  int size() const { return group_->size(); }
  int rank() const { return group_->rank(); }

  const Context cpu_ = Context::cpu();
  std::unique_ptr<Communicator> group_;
};

TEST_F(CommunicatorTest, HasRankSizeAndName) {
  EXPECT_EQ(rank(), world().rank());
  EXPECT_EQ(size(), world().size());
  EXPECT_EQ(group().world_ranks().at(static_cast<size_t>(rank())), world().rank());
  EXPECT_EQ(group().name(), "world");
}

TEST_F(CommunicatorTest, AllReduce) {
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max}) {
    for (const DType dtype : kReducedDTypes) {
      for (const int64_t count : kCounts) {
        SCOPED_TRACE(::testing::Message() << dtype_name(dtype) << " x " << count);
        const std::vector<uint8_t> expected = reduced_bytes(dtype, count, size(), op);
        for (int repetition = 0; repetition < 3; ++repetition) {
          TestTensor t(cpu_, dtype, {count});
          put(t, rank_values(dtype, count, rank()));
          group().all_reduce(cpu_, t, op);
          EXPECT_EQ(t.raw(), expected);
        }
      }
    }
  }
}

TEST_F(CommunicatorTest, AllReduceOfLargeIntegersIsExact) {
  TestTensor t(cpu_, DType::i32, {3});
  // 2^30 + 1 is not an FP32 number; partial sums of the last element exceed 2^31.
  const int32_t sign = rank() % 2 == 0 ? 1 : -1;
  t.fill_ints({rank() == 0 ? (1 << 30) + 1 : 0, rank(), sign * std::numeric_limits<int32_t>::max()});
  group().all_reduce(cpu_, t, ReduceOp::sum);
  const std::vector<uint8_t> bytes = t.raw();
  int32_t values[3];
  std::memcpy(values, bytes.data(), sizeof(values));
  EXPECT_EQ(values[0], (1 << 30) + 1);
  EXPECT_EQ(values[1], size() * (size() - 1) / 2);
  EXPECT_EQ(values[2], size() % 2 == 0 ? 0 : std::numeric_limits<int32_t>::max());
}

TEST_F(CommunicatorTest, MaximumIgnoresNanAndKeepsInfinity) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(),
                  kInf = std::numeric_limits<float>::infinity();
  TestTensor t(cpu_, DType::f32, {3});
  t.fill({rank() == 0 ? kNan : -2.0f - float(rank()), rank() == size() - 1 ? kInf : 1.0f, kNan});
  group().all_reduce(cpu_, t, ReduceOp::max);
  const std::vector<float> values = t.floats();
  EXPECT_TRUE(size() == 1 ? std::isnan(values[0]) : values[0] == -3.0f) << values[0];
  EXPECT_EQ(values[1], kInf);
  EXPECT_TRUE(std::isnan(values[2]));
}

TEST_F(CommunicatorTest, ReducesInRankOrder) {
  if (size() < 3) GTEST_SKIP() << "the order matters only for three or more ranks";
  // ((1e8 + 1) - 1e8) + ... is 0 in this order and 1 in others.
  for (const int64_t count : {int64_t{1}, int64_t{50000}}) {
    TestTensor t(cpu_, DType::f32, {count});
    t.fill_value(rank() == 0 ? 1e8f : rank() == 1 ? 1.0f : rank() == 2 ? -1e8f : 0.0f);
    group().all_reduce(cpu_, t, ReduceOp::sum);
    EXPECT_EQ(t.floats(), std::vector<float>(static_cast<size_t>(count), 0.0f));
  }
}

TEST_F(CommunicatorTest, AllToAll) {
  check_all_to_all(cpu_, group());
  check_all_to_all_of_rows(cpu_, group());
}

TEST_F(CommunicatorTest, AllGather) {
  check_all_gather(cpu_, group());
}

TEST_F(CommunicatorTest, ReduceScatter) {
  for (const DType dtype : kReducedDTypes) {
    for (const int64_t count : kCounts) {
      SCOPED_TRACE(::testing::Message() << dtype_name(dtype) << " x " << count);
      const int64_t total = count * size();
      const std::vector<uint8_t> input = bytes_of(dtype, rank_values(dtype, total, rank(), 1));
      const std::vector<uint8_t> expected =
          part_of(reduced_bytes(dtype, total, size(), ReduceOp::sum, 1), rank(), size());
      TestTensor in(cpu_, dtype, {total}), out(cpu_, dtype, {count});
      in.fill_raw(input.data());
      group().reduce_scatter(cpu_, in, out);
      EXPECT_EQ(out.raw(), expected);
      EXPECT_EQ(in.raw(), input);

      group().reduce_scatter(cpu_, in, part_of(in.get(), rank(), size()));
      std::vector<uint8_t> in_place = input;
      std::copy(expected.begin(), expected.end(),
                in_place.begin() + static_cast<std::ptrdiff_t>(expected.size()) * rank());
      EXPECT_EQ(in.raw(), in_place) << "in place";
    }
  }
}

TEST_F(CommunicatorTest, AcceptsEmptyTensors) {
  const Tensor none{nullptr, DType::f32, {0}};
  group().all_reduce(cpu_, none, ReduceOp::sum);
  group().all_gather(cpu_, none, none);
  group().reduce_scatter(cpu_, none, none);
  group().barrier(cpu_);
}

TEST_F(CommunicatorTest, SendsArriveInOrderAndTheTensorIsReusableAtOnce) {
  if (size() < 2) GTEST_SKIP() << "needs a peer";
  const int next = (rank() + 1) % size(), previous = (rank() + size() - 1) % size();
  constexpr int kMessages = 20;
  // All ranks send everything before they receive, including tensors far above MPI's eager limit.
  const auto count = [](int message) { return int64_t{message % 3 == 0 ? 200001 : 1 + message}; };
  for (int message = 0; message < kMessages; ++message) {
    for (const DType dtype : {DType::bf16, DType::e4m3}) {
      TestTensor t(cpu_, dtype, {count(message)});
      put(t, rank_values(dtype, count(message), rank(), static_cast<uint64_t>(message)));
      group().send(cpu_, t, next);
      cpu_.fill_bytes(t, 0xee);
    }
  }
  for (int message = 0; message < kMessages; ++message) {
    for (const DType dtype : {DType::bf16, DType::e4m3}) {
      TestTensor t(cpu_, dtype, {count(message)});
      group().receive(cpu_, t, previous);
      EXPECT_EQ(t.raw(), bytes_of(dtype, rank_values(dtype, count(message), previous,
                                                     static_cast<uint64_t>(message))));
    }
  }
}

TEST_F(CommunicatorTest, CollectivesDoNotWaitForPendingSends) {
  if (size() < 2) GTEST_SKIP() << "needs a peer";
  TestTensor big(cpu_, DType::f32, {300000}), t(cpu_, DType::f32, {7});
  const int peer = rank() ^ 1;
  const bool paired = peer < size();
  put(big, rank_values(DType::f32, 300000, rank(), 5));
  if (paired) group().send(cpu_, big, peer);
  put(t, rank_values(DType::f32, 7, rank()));
  group().all_reduce(cpu_, t, ReduceOp::sum);
  EXPECT_EQ(t.raw(), reduced_bytes(DType::f32, 7, size(), ReduceOp::sum));
  if (!paired) return;
  group().receive(cpu_, big, peer);
  EXPECT_EQ(big.raw(), bytes_of(DType::f32, rank_values(DType::f32, 300000, peer, 5)));
}

TEST_F(CommunicatorTest, BarrierWaitsForAll) {
  // After the barrier all ranks are in the same round.
  for (int64_t round = 1; round <= 20; ++round) {
    group().barrier(cpu_);
    EXPECT_EQ(world().sum_i64(round), round * size());
  }
}

TEST_F(CommunicatorTest, RefusesMisuse) {
  TestTensor a(cpu_, DType::f32, {8}), b(cpu_, DType::bf16, {8}), c(cpu_, DType::f32, {7}),
      q(cpu_, DType::e4m3, {8}), big(cpu_, DType::f32, {8 * size()});
  const auto message = [](auto&& call) -> std::string {
    try {
      call();
    } catch (const InternalError& error) {
      return error.what();
    }
    return "";
  };
  const auto says = [&](auto&& call, const std::string& words) {
    const std::string text = message(call);
    EXPECT_NE(text.find("group world"), std::string::npos) << text;
    EXPECT_NE(text.find(words), std::string::npos) << text;
  };
  says([&] { group().all_reduce(cpu_, q, ReduceOp::sum); }, "e4m3 cannot be reduced");
  says([&] { group().all_gather(cpu_, b, big); }, "a part of dtype bf16 and a full tensor of fp32");
  says([&] { group().all_gather(cpu_, c, big); }, "shape [7]");
  says([&] { group().reduce_scatter(cpu_, c, big); }, "ranks' parts");
  says([&] { group().all_to_all(cpu_, a, b); }, "all_to_all");
  says([&] { group().all_to_all(cpu_, big, big); }, "overlap");
  says([&] { group().send(cpu_, a, size()); }, "send");
  says([&] { group().send(cpu_, a, rank()); }, "to itself");
  says([&] { group().receive(cpu_, a, -1); }, "rank -1");
  if (size() > 1) {
    const Tensor wrong = part_of(big.get(), (rank() + 1) % size(), size());
    says([&] { group().all_gather(cpu_, wrong, big); }, "overlaps");
    says([&] { group().reduce_scatter(cpu_, big, wrong); }, "overlaps");
  }
}

}  // namespace
}  // namespace te::testing
