// Host-side communication of World, collective failures, and the table of ranks.
#include "parallel/world.h"

#include <algorithm>

#include "parallel/launch.h"
#include "parallel/placement.h"
#include "testing/mpi.h"

namespace te::testing {
namespace {

using parallel::JobFailure;
using parallel::ProcessGrid;

/// The ranks with the same parity as this one.
std::vector<int> own_half() {
  std::vector<int> ranks;
  for (int rank = world().rank() % 2; rank < world().size(); rank += 2) ranks.push_back(rank);
  return ranks;
}

TEST(World, KnowsTheHost) {
  EXPECT_EQ(world().hosts(), 1);
  EXPECT_EQ(world().local_size(), world().size());
  EXPECT_EQ(world().local_rank(), world().rank());
  EXPECT_FALSE(world().hostname().empty());
  EXPECT_EQ(world().leader(), world().rank() == 0);
}

TEST(World, ReducesHostValues) {
  const int64_t size = world().size(), rank = world().rank();
  const int64_t big = int64_t{1} << 60;
  EXPECT_EQ(world().sum_i64(rank + 1), size * (size + 1) / 2);
  EXPECT_EQ(world().max_i64(big + rank), big + size - 1);
  EXPECT_EQ(world().min_i64(-rank), 1 - size);
  EXPECT_EQ(world().max_f64(0.5 * double(rank)), 0.5 * double(size - 1));
  double sum = 0;
  for (int other = 0; other < size; ++other) sum += 1.0 / (other + 3);
  EXPECT_EQ(world().sum_f64(1.0 / double(rank + 3)), sum);  // added in rank order, so bit-identical
}

TEST(World, ReducesWithinAGroup) {
  const std::vector<int> half = own_half();
  int64_t sum = 0;
  for (const int rank : half) sum += rank;
  for (int repetition = 0; repetition < 3; ++repetition) {
    EXPECT_EQ(world().sum_i64(world().rank(), half), sum);
    EXPECT_EQ(world().min_i64(world().rank(), half), world().rank() % 2);
    EXPECT_EQ(world().broadcast_string(std::to_string(world().rank()), half), std::to_string(half.front()));
  }
  world().barrier(half);
}

TEST(World, GathersAndBroadcastsTexts) {
  const auto text_of = [](int rank) {
    return rank == 0 ? std::string() : std::string(static_cast<size_t>(rank) * 1000, 'a') + '\0' + "\nend";
  };
  const std::vector<std::string> texts = world().gather_strings(text_of(world().rank()));
  ASSERT_EQ(texts.size(), static_cast<size_t>(world().size()));
  for (int rank = 0; rank < world().size(); ++rank)
    EXPECT_EQ(texts[static_cast<size_t>(rank)], text_of(rank));
  for (int root = 0; root < world().size(); ++root) {
    EXPECT_EQ(world().broadcast_string(text_of(world().rank()), {}, root), text_of(root));
  }
  EXPECT_EQ(world().gather_strings(""), std::vector<std::string>(static_cast<size_t>(world().size())));
  world().barrier();
}

/// The exit code and message of run_collectively() on this rank.
std::pair<int, std::string> outcome(const std::function<void()>& fn) {
  try {
    world().run_collectively(fn);
  } catch (const JobFailure& failure) {
    return {failure.exit_code(), failure.what()};
  } catch (const UserError& error) {  // a world of one rank throws the exception itself
    return {2, std::string("error: ") + error.what()};
  } catch (const std::exception& error) {
    return {1, std::string("internal error: ") + error.what()};
  }
  return {0, ""};
}

TEST(World, AllRanksThrowIfOneFails) {
  using Result = std::pair<int, std::string>;
  const int rank = world().rank(), size = world().size(), last = size - 1;
  EXPECT_EQ(outcome([] {}), Result(0, ""));
  EXPECT_EQ(outcome([] { user_error("key: rule"); }), Result(2, "error: key: rule"));
  EXPECT_EQ(outcome([] { throw std::runtime_error("broken"); }), Result(1, "internal error: broken"));
  if (size == 1) return;
  EXPECT_EQ(outcome([&] {
              if (rank == last) user_error("file: gone");
            }),
            Result(2, fmt::format("rank {}: error: file: gone", last)));
  // Internal errors have priority over user errors.
  EXPECT_EQ(outcome([&] {
              if (rank == last) throw std::runtime_error("broken");
              user_error("file: gone");
            }).first,
            1);
}

TEST(World, PlacementHasAllRanksOnOneHost) {
  const parallel::Placement placement = parallel::find_placement(world(), Context::cpu());
  ASSERT_EQ(placement.size(), 1u);
  EXPECT_EQ(placement[0].name, world().hostname());
  EXPECT_EQ(placement[0].ranks.size(), static_cast<size_t>(world().size()));
  EXPECT_EQ(placement[0].ranks.back(), world().size() - 1);
  EXPECT_EQ(placement[0].devices, Context::cpu().info().name);
  EXPECT_EQ(placement[0].link, "");
  EXPECT_EQ(world().first_local(), 0);
}

TEST(World, BindingTableHasALinePerRank) {
  const ProcessGrid grid = ProcessGrid::of(world().size(), 1, 1, world().size());
  const std::string table = parallel::binding_table(world(), Context::cpu(), grid);
  EXPECT_EQ(std::ranges::count(table, '\n'), world().size() + 1) << table;
  EXPECT_NE(table.find(world().hostname()), std::string::npos) << table;
  EXPECT_NE(table.find(fmt::format("pipeline {}\n", world().size() - 1)), std::string::npos) << table;
  EXPECT_EQ(world().broadcast_string(table), table);
}

TEST(Launch, EnvironmentVariableLetsRanksShareGpus) {
  unsetenv("TE_RANKS_SHARE_GPUS");
  EXPECT_FALSE(parallel::ranks_share_gpus());
  for (const auto& [value, shared] : {std::pair{"1", true}, {"yes", true}, {"0", false}, {"", false}}) {
    setenv("TE_RANKS_SHARE_GPUS", value, 1);
    EXPECT_EQ(parallel::ranks_share_gpus(), shared) << value;
  }
  unsetenv("TE_RANKS_SHARE_GPUS");
}

}  // namespace
}  // namespace te::testing
