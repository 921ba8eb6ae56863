// Memory plan: addresses of buffers, packing of scratch, and errors for conflicting buffers.
#include "core/memory_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "core/error.h"
#include "core/profile.h"

namespace te {
namespace {

constexpr int64_t kAlignment = 256;

/// Maximum over all steps of the bytes in use: a lower bound for any packing.
int64_t most_alive(const std::vector<ScratchBuffer>& buffers) {
  int64_t most = 0;
  for (int step = 0; step < Lifetime::kSteps; ++step) {
    int64_t alive = 0;
    for (const ScratchBuffer& buffer : buffers) alive += buffer.lifetime.contains(step) ? buffer.bytes : 0;
    most = std::max(most, alive);
  }
  return most;
}

std::vector<ScratchBuffer> random_buffers(unsigned seed) {
  std::mt19937 random(seed);
  const auto below = [&](int end) { return static_cast<int>(random() % static_cast<unsigned>(end)); };
  std::vector<ScratchBuffer> buffers;
  for (int i = 0; i < 40; ++i) {
    const int first = below(20), length = below(6);
    Lifetime lifetime(first, first + length);
    if (below(4) == 0) lifetime = lifetime | Lifetime(40, 40 + below(10));
    buffers.push_back({"buffer " + std::to_string(i), lifetime, 1 + below(5000), 0});
  }
  return buffers;
}

/// A plan with its memory.
struct PlanWithMemory {
  Context context = Context::cpu();
  MemoryPlan plan;
  DeviceBuffer memory;
  std::deque<PlannedTensor> slots;

  /// Without a tag, scratch has one of its own.
  PlannedTensor& add(const char* name, int64_t bytes, Lifetime lifetime = {}, ScratchTag tag = {}) {
    enum class Own : size_t {};
    if (tag.empty()) tag = static_cast<Own>(slots.size());
    plan.add(slots.emplace_back(), name, MemoryKind::scratch, DType::u8, {bytes}, {tag, lifetime});
    return slots.back();
  }
  void allocate() { memory = plan.allocate(context); }
};

bool common_bytes(const Tensor& a, const Tensor& b) {
  return a.as<char>() < b.as<char>() + b.bytes() && b.as<char>() < a.as<char>() + a.bytes();
}

TEST(Lifetime, IsASetOfSteps) {
  constexpr Lifetime two(3, 4), last(63, 63), all(0, 63);
  EXPECT_TRUE(two.contains(3) && two.contains(4));
  EXPECT_FALSE(two.contains(2) || two.contains(5) || two.contains(-1));
  EXPECT_TRUE(last.contains(63) && !last.contains(62));
  EXPECT_TRUE(all.overlaps(two) && all.overlaps(last) && !two.overlaps(last));
  EXPECT_TRUE((two | last).overlaps(last));
  EXPECT_TRUE(Lifetime().empty() && !Lifetime().overlaps(all));
}

TEST(Packing, OverlapsBuffersWithoutCommonSteps) {
  std::vector<ScratchBuffer> buffers = {{"early", {0, 1}, 1000, 0},
                                        {"late", {2, 3}, 2000, 0},
                                        {"both", {1, 2}, 500, 0},
                                        {"early and late", Lifetime(0, 0) | Lifetime(3, 3), 500, 0}};
  EXPECT_EQ(pack(buffers, kAlignment), 2560);  // "late", followed by "both" and "early and late"
  EXPECT_EQ(buffers[0].offset, buffers[1].offset);
  EXPECT_EQ(buffers[2].offset, buffers[3].offset);
  EXPECT_NO_THROW(check_packing(buffers));
}

TEST(Packing, IsValidAlignedTightAndDeterministic) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    std::vector<ScratchBuffer> buffers = random_buffers(seed), again = buffers;
    const int64_t bytes = pack(buffers, kAlignment);
    EXPECT_NO_THROW(check_packing(buffers)) << seed;
    EXPECT_EQ(pack(again, kAlignment), bytes);
    for (size_t i = 0; i < buffers.size(); ++i) {
      EXPECT_EQ(buffers[i].offset % kAlignment, 0);
      EXPECT_LE(buffers[i].end(), bytes);
      EXPECT_EQ(buffers[i].offset, again[i].offset);
    }
    EXPECT_GE(bytes, most_alive(buffers));
    EXPECT_LE(static_cast<double>(bytes), 1.35 * static_cast<double>(most_alive(buffers))) << seed;
  }
}

TEST(Packing, RefusesOverlapOfBuffersWithACommonStep) {
  std::vector<ScratchBuffer> buffers = {
      {"d_act", {2, 3}, 1000, 0}, {"d_o", {5, 6}, 1000, 0}, {"workspace", {6, 7}, 100, 999}};
  try {
    check_packing(buffers);
    FAIL() << "an overlap of one byte in one step was not refused";
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find("d_o and workspace"), std::string::npos) << error.what();
  }
  buffers[2].offset = 1000;
  EXPECT_NO_THROW(check_packing(buffers));
}

TEST(MemoryPlan, IsOneZeroedBlockOfAlignedBuffers) {
  PlanWithMemory p;
  const std::vector<Tensor*> slots = {&p.add("a", 100), &p.add("b", 300), &p.add("c", 700, {0, 1}),
                                      &p.add("d", 5, {1, 2})};
  EXPECT_EQ(p.plan.total_bytes(), 256 + 512 + 768 + 256);
  EXPECT_EQ(p.plan.bytes(MemoryKind::scratch), 100 + 300 + 768 + 256);
  p.allocate();
  const auto* begin = static_cast<const char*>(p.memory.data());
  EXPECT_TRUE(std::all_of(begin, begin + p.plan.total_bytes(), [](char byte) { return byte == 0; }));
  for (const Tensor* slot : slots) {
    EXPECT_EQ((slot->as<char>() - begin) % kAlignment, 0);
    EXPECT_LE(slot->as<char>() + slot->bytes(), begin + p.plan.total_bytes());
    for (const Tensor* other : slots) EXPECT_EQ(common_bytes(*slot, *other), slot == other);
  }
}

TEST(MemoryPlan, OnlyScratchOverlaps) {
  PlanWithMemory p;
  const Tensor &own = p.add("own", 256), &early = p.add("early", 1000, {0, 1}),
               &late = p.add("late", 900, {2, 3});
  p.allocate();
  EXPECT_TRUE(common_bytes(early, late));
  EXPECT_FALSE(common_bytes(own, early) || common_bytes(own, late));
  EXPECT_EQ(p.plan.total_bytes(), 256 + 1024);
  EXPECT_NE(p.plan.buffers().find("late"), std::string::npos);
}

TEST(MemoryPlan, PartsOfAnOverlayHaveTheSameAddressAndTheLargestCounts) {
  PlanWithMemory p;
  PlannedTensor &before = p.add("before", 100), *small = nullptr, *large = nullptr, *large_end = nullptr,
                *scratch = nullptr, *last = nullptr;
  p.plan.overlay(3, [&](int part) {
    if (part == 0) {
      small = &p.add("small", 300);
      scratch = &p.add("scratch", 2000, {0, 1});
    } else if (part == 1) {
      large = &p.add("large", 500);
      large_end = &p.add("large end", 100);
    } else {
      last = &p.add("last", 700);
    }
  });
  Tensor& after = p.add("after", 100);
  EXPECT_EQ(p.plan.total_bytes(), 256 + (512 + 256) + 256 + 2048);
  EXPECT_EQ(p.plan.bytes(MemoryKind::scratch), 100 + (500 + 100) + 100 + 2048);
  EXPECT_EQ(p.plan.buffers().find("small"), std::string::npos);
  EXPECT_NE(p.plan.buffers().find("large end"), std::string::npos);
  p.allocate();
  EXPECT_EQ(small->data, large->data);
  EXPECT_EQ(last->data, large->data);
  EXPECT_FALSE(common_bytes(*large, *large_end));
  for (const Tensor* slot : {small, large, large_end, last}) {
    EXPECT_FALSE(common_bytes(*slot, before));
    EXPECT_FALSE(common_bytes(*slot, after));
    EXPECT_FALSE(common_bytes(*slot, *scratch));
  }
}

enum class Part : uint8_t { attention, mlp };
enum class Buffer : uint8_t { d_act, d_out };
enum class OtherBuffer : uint8_t { d_act };

TEST(ScratchTag, IsEqualIfAllItsEnumeratorsAre) {
  constexpr ScratchTag mlp = Part::mlp, attention = Part::attention;
  static_assert(mlp / Buffer::d_act == ScratchTag(Part::mlp) / Buffer::d_act);
  EXPECT_FALSE(mlp / Buffer::d_act == mlp / Buffer::d_out);
  EXPECT_FALSE(mlp / Buffer::d_act == attention / Buffer::d_act);
  EXPECT_FALSE(mlp / Buffer::d_act == mlp / OtherBuffer::d_act) << "equal values of two enumerations";
  EXPECT_FALSE(mlp / Buffer::d_act == mlp);
  EXPECT_TRUE(ScratchTag().empty() && !mlp.empty());
}

TEST(MemoryPlan, LayersShareScratchOfTheSameTag) {
  PlanWithMemory p;
  const Tensor &small = p.add("layers.0.d_act", 100, {0, 1}, Buffer::d_act),
               &large = p.add("layers.11.d_act", 900, {1, 2}, Buffer::d_act),
               &other = p.add("layers.0.d_out", 100, {2, 2}, Buffer::d_out);
  p.allocate();
  EXPECT_EQ(small.data, large.data);
  EXPECT_FALSE(common_bytes(large, other)) << "the buffer has the lifetimes of all its layers";
  EXPECT_EQ(p.plan.total_bytes(), 1024 + 256);
}

// A name decides nothing: neither does a common name make two buffers one, nor do two names separate one buffer.
TEST(MemoryPlan, NamesDoNotDecideWhatIsShared) {
  PlanWithMemory p;
  const Tensor &first = p.add("layers.0.d_act", 100, {0, 1}, Buffer::d_act),
               &second = p.add("layers.1.d_act", 100, {0, 1}, OtherBuffer::d_act),
               &misspelt = p.add("layers.2.d_atc", 100, {0, 1}, Buffer::d_act);
  p.allocate();
  EXPECT_FALSE(common_bytes(first, second));
  EXPECT_EQ(first.data, misspelt.data);
}

TEST(MemoryPlan, RefusesOneNameWithTwoTagsShapesOrLifetimes) {
  PlanWithMemory p;
  p.add("layers.0.d_act", 100, {0, 1}, Buffer::d_act);
  EXPECT_NO_THROW(p.add("layers.0.d_act", 100, {0, 1}, Buffer::d_act));  // for another microbatch
  EXPECT_THROW(p.add("layers.0.d_act", 200, {0, 1}, Buffer::d_act), InternalError);
  EXPECT_THROW(p.add("layers.0.d_act", 100, {3, 4}, Buffer::d_act), InternalError);
  EXPECT_THROW(p.add("layers.0.d_act", 100, {0, 1}, Buffer::d_out), InternalError);
}

TEST(MemoryPlan, RefusesScratchWithoutATag) {
  MemoryPlan plan;
  PlannedTensor slot;
  EXPECT_THROW(plan.add(slot, "x", MemoryKind::scratch, DType::u8, {1}, {{}, Lifetime(0, 1)}), InternalError);
}

// The plan keeps the address of a slot, so neither a slot nor an object that contains one can be copied or moved, and
// a plain tensor is no slot.
struct Component {
  PlannedTensor slot;
};
struct Pair {
  Tensor first, second;
};
template <class T>
constexpr bool kStays = !std::is_copy_constructible_v<T> && !std::is_move_constructible_v<T> &&
                        !std::is_copy_assignable_v<T> && !std::is_move_assignable_v<T>;
static_assert(kStays<PlannedTensor> && kStays<Planned<Pair>> && kStays<Component>);
static_assert(!std::is_constructible_v<PlanSlot, Tensor&> &&
              std::is_constructible_v<PlanSlot, PlannedTensor&>);

TEST(PlanSlot, IsPartOfItsOwner) {
  Planned<Pair> pair;
  Tensor elsewhere;
  EXPECT_EQ(PlanSlot(pair, pair.second).get(), &pair.second);
  EXPECT_THROW(PlanSlot(pair, elsewhere), InternalError);
}

// Whether a tensor is planned and whether there is memory are two questions.
TEST(MemoryPlan, TensorsArePlannedBeforeTheyHaveMemory) {
  PlanWithMemory p;
  PlannedTensor absent;
  const Tensor& slot = p.add("a", 100);
  EXPECT_TRUE(slot.is_planned());
  EXPECT_FALSE(slot);
  EXPECT_EQ(slot.bytes(), 0u);
  EXPECT_EQ(slot.planned_bytes(), 100);
  p.allocate();
  EXPECT_TRUE(slot.is_planned() && slot);
  EXPECT_EQ(slot.bytes(), 100u);
  EXPECT_FALSE(absent.is_planned() || absent);
  EXPECT_EQ(absent.planned_bytes(), 0);
  EXPECT_THROW(p.plan.add(absent, "b", MemoryKind::data, DType::f32, {}), InternalError);
}

TEST(MemoryPlan, AnAliasIsTheSameMemory) {
  PlanWithMemory p;
  PlannedTensor& owner = p.add("owner", 40, {0, 0});
  PlannedTensor alias;
  p.plan.alias(alias, owner);
  p.allocate();
  EXPECT_EQ(alias.data, owner.data);
  EXPECT_EQ(alias.shape, owner.shape);
}

TEST(MemoryPlan, HostMemoryIsSeparate) {
  PlanWithMemory p;
  PlannedTensor first, second;
  p.add("device", 100);
  p.plan.add_host(first, "first", MemoryKind::optimizer, DType::f32, {3});
  p.plan.add(MemoryPlace::host, second, "second", MemoryKind::main_params, DType::u16, {1000});
  EXPECT_EQ(p.plan.total_bytes(), 256);
  EXPECT_EQ(p.plan.total_host_bytes(), 256 + 2048);
  EXPECT_EQ(p.plan.bytes(MemoryKind::optimizer), 0);
  EXPECT_EQ(p.plan.host_bytes(MemoryKind::optimizer), 12);
  EXPECT_EQ(p.plan.host_bytes(MemoryKind::main_params), 2000);
  const std::string table = p.plan.table(), buffers = p.plan.buffers();
  EXPECT_NE(table.find("total                            256 B\nhost memory (page-locked with a GPU):\n"),
            std::string::npos)
      << table;
  EXPECT_NE(table.find("total on the host               2304 B\n"), std::string::npos) << table;
  EXPECT_NE(buffers.find("second uint16 [1000], on the host"), std::string::npos) << buffers;
  const HostBuffer host = p.plan.allocate_host(p.context);
  p.allocate();
  ASSERT_EQ(host.bytes(), 256u + 2048u);
  EXPECT_EQ(first.data, host.as<void>());
  EXPECT_EQ(second.as<char>(), host.as<char>() + 256);
  EXPECT_TRUE(
      std::all_of(host.as<char>(), host.as<char>() + host.bytes(), [](char byte) { return byte == 0; }));
  // Without host buffers nothing is allocated, and the table does not mention the host.
  PlanWithMemory without;
  without.add("device", 100);
  EXPECT_EQ(without.plan.allocate_host(without.context).bytes(), 0u);
  EXPECT_EQ(without.plan.table().find("host"), std::string::npos);
}

// Reads after the lifetime of scratch, and reads of data that was written before it, return NaN.
TEST(MemoryPlan, OverwritesScratchOutsideItsLifetime) {
  PlanWithMemory p;
  const Tensor &always = p.add("always", 64), &buffer = p.add("buffer", 64, {2, 3}),
               &longer = p.add("longer", 64, {2, 4});
  p.allocate();
  const auto all = [](const Tensor& tensor, unsigned char value) {
    const auto* bytes = tensor.as<unsigned char>();
    return std::all_of(bytes, bytes + tensor.bytes(), [&](unsigned char byte) { return byte == value; });
  };
  p.plan.begin_step(p.context, 1);
  p.context.fill_bytes(buffer, 7);  // too early
  p.context.fill_bytes(always, 7);
  p.plan.begin_step(p.context, 2);
  EXPECT_TRUE(all(buffer, 0xff));
  p.context.fill_bytes(buffer, 7);
  p.context.fill_bytes(longer, 7);
  p.plan.begin_step(p.context, 3);
  EXPECT_TRUE(all(buffer, 7));
  p.plan.begin_step(p.context, 4);
  EXPECT_TRUE(all(buffer, 0xff));  // too late
  EXPECT_TRUE(all(longer, 7));
  EXPECT_TRUE(all(always, 7));
}

/// Counts operations.
class CountOperations final : public OpObserver {
 public:
  void begin(const Context&, OpCall) override { ++operations; }
  void end(const Context&) override {}
  int operations = 0;
};

// A plan of any size can be traced: its buffers have distinct addresses, and take no memory.
TEST(MemoryPlan, TracingNeedsNoMemory) {
  CountOperations counter;
  const Context context = Context::trace(counter);
  MemoryPlan plan;
  PlannedTensor first, second, alias, scratch, host;
  plan.add(first, "first", MemoryKind::data, DType::f32, {int64_t{1} << 40});
  plan.add(second, "second", MemoryKind::data, DType::f32, {4});
  plan.alias(alias, first);
  plan.add(scratch, "scratch", MemoryKind::scratch, DType::f32, {8}, {Buffer::d_act, Lifetime(1, 2)});
  plan.add_host(host, "host", MemoryKind::optimizer, DType::f32, {int64_t{1} << 40});
  const HostBuffer host_memory = plan.allocate_host(context);
  const DeviceBuffer memory = plan.allocate(context);
  EXPECT_EQ(counter.operations, 1) << "the block is zeroed, which is only reported";
  EXPECT_EQ(first.data, memory.data());
  EXPECT_EQ(host.data, host_memory.as<void>());
  EXPECT_EQ(alias.data, first.data);
  EXPECT_EQ(static_cast<char*>(second.data) - static_cast<char*>(first.data), int64_t{4} << 40);
  EXPECT_GT(scratch.data, second.data);
}

// Code that reads or writes tensors without asking the context must not crash.
TEST(MemoryPlan, TracedMemoryReadsAsZerosAndCanBeWritten) {
  CountOperations counter;
  const Context context = Context::trace(counter).side();
  const DeviceBuffer memory(context, size_t{1} << 40);
  auto* const last = static_cast<float*>(memory.data()) + (size_t{1} << 38) - 1;
  EXPECT_EQ(*last, 0.0f);
  *last = 1.0f;
  context.zero({last, DType::f32, {1}});
  EXPECT_EQ(*last, 1.0f) << "a traced context executes nothing";
  EXPECT_EQ(counter.operations, 1);
}

}  // namespace
}  // namespace te
