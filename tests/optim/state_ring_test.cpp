// The ring of slots for offloaded state: which chunk is in which slot, the results, and misuse. Only GPU tests check
// its stream order (optimizer_mpi_gpu_test.cpp, offload_gpu_test.cpp).
#include "optim/state_ring.h"

#include <gtest/gtest.h>

#include <vector>

#include "core/error.h"

namespace te {
namespace {

using Chunks = std::vector<optim::StateRing::Chunk>;

/// A shard of floats with one byte per 4 of them, and the slots' memory.
class Ring : public ::testing::Test {
 protected:
  static constexpr int64_t kPart = 4, kElements = 21, kSlot = 8;
  static constexpr int kSlots = 2;
  const Chunks chunks_ = {{0, 8}, {8, 4}, {12, 8}, {20, 1}};

  Ring() {
    for (size_t i = 0; i < values_.size(); ++i) values_[i] = static_cast<float>(i);
    for (size_t i = 0; i < parts_.size(); ++i) parts_[i] = static_cast<uint8_t>(100 + i);
    ring_.pass(host_values_, slot_values_, 1);
    ring_.pass(host_parts_, slot_parts_, kPart);
    ring_.lay_out(chunks_, kSlots, kSlot);
  }

  /// One step: multiplies every element of a chunk by 10 and increments every byte.
  void take_step() {
    for (size_t chunk = 0; chunk < chunks_.size(); ++chunk) {
      const int64_t at = ring_.fetch(context_, chunk);
      EXPECT_EQ(at, static_cast<int64_t>(chunk % kSlots) * kSlot);
      for (int64_t i = 0; i < chunks_[chunk].count; ++i) {
        EXPECT_EQ(slots_[at + i], values_[chunks_[chunk].first + i]);
        slots_[at + i] *= 10;
      }
      for (int64_t i = 0; i < chunks_[chunk].count; i += kPart) ++part_slots_[(at + i) / kPart];
      ring_.write_back(context_, chunk);
    }
  }

  const Context context_ = Context::cpu();
  std::vector<float> values_ = std::vector<float>(kElements), slots_ = std::vector<float>(kSlots * kSlot);
  std::vector<uint8_t> parts_ = std::vector<uint8_t>(6), part_slots_ = std::vector<uint8_t>(4);
  const Tensor host_values_{values_.data(), DType::f32, {kElements}},
      slot_values_{slots_.data(), DType::f32, {kSlots * kSlot}}, host_parts_{parts_.data(), DType::u8, {6}},
      slot_parts_{part_slots_.data(), DType::u8, {4}};
  optim::StateRing ring_;
};

TEST_F(Ring, EveryElementIsUpdatedOnce) {
  for (int step = 1; step <= 3; ++step) {
    if (step == 2) ring_.begin(context_), ring_.begin(context_);
    take_step();
    ring_.wait_offload();
    const float factor = step == 1 ? 10 : step == 2 ? 100 : 1000;
    for (size_t i = 0; i < values_.size(); ++i) EXPECT_EQ(values_[i], static_cast<float>(i) * factor) << i;
    for (size_t i = 0; i < parts_.size(); ++i) EXPECT_EQ(parts_[i], 100 + i + static_cast<size_t>(step)) << i;
  }
}

// Only the first slots are filled before the step.
TEST_F(Ring, PrefetchesWhatFits) {
  ring_.begin(context_);
  EXPECT_EQ(slots_, (std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0, 0, 0, 0}));
  EXPECT_EQ(part_slots_, (std::vector<uint8_t>{100, 101, 102, 0}));
  values_[1] = -1;  // too late
  EXPECT_EQ(ring_.fetch(context_, 0), 0);
  EXPECT_EQ(slots_[1], 1);
  ring_.write_back(context_, 0);
  EXPECT_EQ(values_[1], 1);
  EXPECT_EQ(slots_[0], 12);  // the slot has the next chunk
}

TEST_F(Ring, MisuseIsAnError) {
  EXPECT_THROW(ring_.fetch(context_, 2), InternalError);  // before it has a slot
  EXPECT_THROW(ring_.wait_offload(), InternalError);      // within a step
  EXPECT_THROW(ring_.lay_out({{0, kSlot + 1}}, kSlots, kSlot), InternalError);
  EXPECT_THROW(ring_.pass(host_values_, slot_parts_, 1), InternalError);
}

TEST(EmptyRing, DoesNothing) {
  optim::StateRing ring;
  EXPECT_TRUE(ring.empty());
  ring.begin(Context::cpu());
  ring.wait_offload();
}

}  // namespace
}  // namespace te
