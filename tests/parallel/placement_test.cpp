// Summary of hosts in a few lines, and the warning about groups that span hosts, for fake placements.
#include "parallel/placement.h"

#include <gtest/gtest.h>

namespace te::parallel {
namespace {

/// `count` hosts with `each` ranks, assigned in blocks or round robin.
Placement hosts(int count, int each, bool round_robin = false) {
  Placement placement;
  for (int host = 0; host < count; ++host) {
    HostPlacement& made = placement.emplace_back();
    made.name = fmt::format("node{:02}", host + 1);
    made.devices = fmt::format("{} x NVIDIA H200", each);
    made.link = each > 1 ? "NVLink" : "";
    for (int i = 0; i < each; ++i) made.ranks.push_back(round_robin ? i * count + host : host * each + i);
  }
  return placement;
}

using Lines = std::vector<std::string>;

TEST(Placement, OneLinePerHostForFewHosts) {
  EXPECT_EQ(host_lines(hosts(1, 8), 4), Lines{"node01: ranks 0-7, 8 x NVIDIA H200, NVLink"});
  EXPECT_EQ(host_lines(hosts(2, 1), 4),
            (Lines{"node01: rank 0, 1 x NVIDIA H200", "node02: rank 1, 1 x NVIDIA H200"}));
  EXPECT_EQ(host_lines(hosts(2, 2, true), 4), (Lines{"node01: ranks 0, 2, 2 x NVIDIA H200, NVLink",
                                                     "node02: ranks 1, 3, 2 x NVIDIA H200, NVLink"}));
}

TEST(Placement, ManyHostsShareLines) {
  EXPECT_EQ(host_lines(hosts(16, 8), 4),
            Lines{"node01 to node16 (16 hosts): 8 ranks each, 0-127, 8 x NVIDIA H200, NVLink"});
  // A host with a different link in the middle, and one with fewer ranks at the end.
  Placement mixed = hosts(16, 8);
  mixed[7].link = "PCIe";
  mixed[15].ranks.pop_back();
  EXPECT_EQ(host_lines(mixed, 4),
            (Lines{"node01 to node07 (7 hosts): 8 ranks each, 0-55, 8 x NVIDIA H200, NVLink",
                   "node08: ranks 56-63, 8 x NVIDIA H200, PCIe",
                   "node09 to node15 (7 hosts): 8 ranks each, 64-119, 8 x NVIDIA H200, NVLink",
                   "node16: ranks 120-126, 8 x NVIDIA H200, NVLink"}));
  // All neighbors differ: the hosts beyond the limit are only counted.
  Placement motley = hosts(16, 8);
  for (size_t host = 0; host < motley.size(); host += 2) motley[host].link = "PCIe";
  const Lines lines = host_lines(motley, 4);
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[3], "and 13 more hosts");
  EXPECT_EQ(host_lines(motley, 16).size(), 16u);
}

TEST(Placement, NoWarningForGroupsInsideAHost) {
  EXPECT_EQ(crossing_groups(hosts(1, 8), ProcessGrid::of(8, 8, 1, 1)), "");
  EXPECT_EQ(crossing_groups(hosts(2, 8), ProcessGrid::of(16, 8, 1, 2)), "");
  EXPECT_EQ(crossing_groups(hosts(2, 8), ProcessGrid::of(16, 4, 2, 1)), "");
  EXPECT_EQ(crossing_groups(hosts(4, 1), ProcessGrid::of(4, 1, 1, 4)), "");
}

TEST(Placement, WarningNamesTheRemedy) {
  // 16 tensor-parallel ranks on hosts with 8 ranks: 8 would fit.
  EXPECT_EQ(
      crossing_groups(hosts(2, 8), ProcessGrid::of(16, 16, 1, 1)),
      "parallel.tensor 16: ranks 0-15 are on 2 hosts (node01, node02), 1 of 1 groups span hosts: "
      "every layer waits for the network; set parallel.tensor to 8, which keeps a group on one host, and use "
      "parallel.pipeline or parallel.shard to divide the model over hosts");
  // Groups of 4 on hosts with 6 ranks: one of three groups spans hosts, and groups of 2 fit.
  const std::string six = crossing_groups(hosts(2, 6), ProcessGrid::of(12, 4, 1, 1));
  EXPECT_NE(six.find("ranks 4-7 are on 2 hosts (node01, node02), 1 of 3 groups span hosts"),
            std::string::npos)
      << six;
  EXPECT_NE(six.find("set parallel.tensor to 2,"), std::string::npos) << six;
  // Ranks assigned round robin to hosts: the layout is fine, the order is not.
  const std::string scattered = crossing_groups(hosts(4, 2, true), ProcessGrid::of(8, 2, 1, 1));
  EXPECT_NE(scattered.find("ranks 0-1 are on 2 hosts (node01, node02), 4 of 4 groups span hosts"),
            std::string::npos)
      << scattered;
  EXPECT_NE(scattered.find("mpirun --map-by slot"), std::string::npos) << scattered;
  EXPECT_EQ(scattered.find("set parallel.tensor"), std::string::npos) << scattered;
  // Tensor 4 x context 4 on hosts with 8 ranks: context-parallel groups span hosts, tensor-parallel groups do not.
  const std::string context = crossing_groups(hosts(2, 8), ProcessGrid::of(16, 4, 4, 1));
  EXPECT_NE(context.find("parallel.context 4: ranks 0, 4, 8, 12 are on 2 hosts (node01, node02), "
                         "4 of 4 groups span hosts"),
            std::string::npos)
      << context;
  EXPECT_NE(context.find("set parallel.context to 2,"), std::string::npos) << context;
  const std::string many = crossing_groups(hosts(4, 2), ProcessGrid::of(8, 8, 1, 1));
  EXPECT_NE(many.find("on 4 hosts (node01, ..., node04)"), std::string::npos) << many;
  for (const std::string& text : {six, scattered, context, many})
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
}

}  // namespace
}  // namespace te::parallel
