#include "parallel/groups.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "parallel/dry_run_communicator.h"
#include "parallel/mpi_communicator.h"
#include "parallel/nccl_communicator.h"
#include "parallel/world.h"

namespace te::parallel {
namespace {

constexpr const char* kTransportKey = "parallel.transport";

std::unique_ptr<Communicator> connect_group(World& world, const Context& context, std::string name,
                                            std::vector<int> ranks, int max_ctas, bool channel) {
#ifdef TE_WITH_CUDA
  if (context.is_cuda()) {
    return make_nccl_communicator(world, context, std::move(name), std::move(ranks), max_ctas, channel);
  }
#else
  static_cast<void>(max_ctas);
  static_cast<void>(channel);
#endif
  TE_CHECK(!context.is_cuda(), "group {}: a CUDA context in a build without CUDA", name);
  return std::make_unique<MpiCommunicator>(world, std::move(name), std::move(ranks));
}

std::unique_ptr<PeerTransport> connect_copies(World& world, const Context& context, Communicator& group,
                                              const std::string& key) {
#ifdef TE_WITH_CUDA
  if (context.is_cuda()) return make_peer_transport(world, context, group, key);
#else
  static_cast<void>(world);
  static_cast<void>(key);
#endif
  TE_CHECK(!context.is_cuda(), "group {}: a CUDA context in a build without CUDA", group.name());
  return make_group_transport(group);
}

/// If the transport is optional: null on the CPU, and, with a warning, if the GPUs do not support it.
std::unique_ptr<PeerTransport> connect_tensor_copies(World& world, const Context& context,
                                                     Communicator& group, bool optional) {
  if (optional && !context.is_cuda()) return nullptr;
  try {
    return connect_copies(world, context, group, kTransportKey);
  } catch (const JobFailure& failure) {                // on all ranks
    if (!optional || failure.exit_code() != 2) throw;  // 2: a UserError
    std::string_view reason = failure.what();
    if (reason.starts_with("error: ")) reason.remove_prefix(7);
    if (world.leader()) log_warning("NCCL is used for tensor-parallel activations: {}", reason);
    return nullptr;
  }
}

}  // namespace

/// make_group(name, ranks, channel) creates a communicator of at least two ranks, including `rank`.
template <class Make>
Groups Groups::make(const ProcessGrid& grid, int rank, Make&& make_group) {
  Groups groups;
  groups.grid_ = grid;
  groups.rank_ = rank;
  groups.at_ = grid.coordinates(rank);
  const auto keep = [&](std::unique_ptr<Communicator> made) {
    return groups.made_.emplace_back(std::move(made)).get();
  };
  for (const GroupRow& row : kGroups) {
    std::vector<int> ranks = grid.members(row, rank);
    Communicator*& group = groups.groups_[static_cast<size_t>(row.group)];
    for (const GroupRow& other : kGroups)
      if (group == nullptr && row.reuses.contains(other.group) &&
          groups.of(other.group).world_ranks() == ranks)
        group = &groups.of(other.group);
    if (group != nullptr) continue;
    if (ranks.size() == 1)
      group = keep(std::make_unique<SingleCommunicator>(row.name, rank));
    else
      group = keep(make_group(row.name, std::move(ranks), false));
  }
  groups.gradient_ranks_ = {&groups.data(), &groups.of(Group::expert_data), &groups.stage()};
  const int stage_count = grid[Axis::pipeline];
  if (stage_count == 1) return groups;

  // All ranks create their links in the order of the ring, so that they do not wait for each other in a cycle.
  const std::vector<int> stages = grid.ranks_along({Axis::pipeline}, rank);
  const int own = groups.at_[Axis::pipeline];
  for (int stage = 0; stage < stage_count; ++stage) {
    const int next = (stage + 1) % stage_count;
    if (own != stage && own != next) continue;
    const int from = stages[static_cast<size_t>(stage)], to = stages[static_cast<size_t>(next)];
    const std::string link = std::to_string(stage) + "-" + std::to_string(next);
    Communicator* forward = keep(make_group("forward " + link, std::vector<int>{from, to}, true));
    Communicator* backward = keep(make_group("backward " + link, std::vector<int>{to, from}, true));
    const bool sends = own == stage;
    groups.slot(sends ? Channel::forward_to_next : Channel::forward_from_previous) = forward;
    groups.slot(sends ? Channel::backward_from_next : Channel::backward_to_previous) = backward;
  }
  return groups;
}

Groups::~Groups() {
  tensor_peer_transport_.reset();
  // In the order of creation on all ranks: destruction of a communicator may wait for its other ranks.
  for (std::unique_ptr<Communicator>& communicator : made_) communicator.reset();
}

Groups Groups::single() {
  return dry_run(ProcessGrid{}, 0);
}

Groups Groups::dry_run(const ProcessGrid& grid, int rank, const ConnectOptions& options) {
  return unconnected<UnconnectedCommunicator>(grid, rank, options);
}

Groups Groups::no_communication(const ProcessGrid& grid, int rank, const ConnectOptions& options) {
  return unconnected<DryRunCommunicator>(grid, rank, options);
}

template <class Made>
Groups Groups::unconnected(const ProcessGrid& grid, int rank, const ConnectOptions& options) {
  Groups groups = make(grid, rank, [&](std::string name, std::vector<int> ranks, bool) {
    const auto own = std::ranges::find(ranks, rank) - ranks.begin();
    return std::make_unique<Made>(std::move(name), std::move(ranks), static_cast<int>(own));
  });
  if (options.use_tensor_copy_engines && grid[Axis::tensor] > 1)
    groups.tensor_peer_transport_ = make_group_transport(groups.tensor());
  return groups;
}

Groups Groups::connect(World& world, const Context& context, const ProcessGrid& grid,
                       const ConnectOptions& options) {
  TE_CHECK(grid.world == world.size(), "process grid of {} in a world of {}", grid.str(), world.size());
  Groups groups = make(grid, world.rank(), [&](std::string name, std::vector<int> ranks, bool channel) {
    return connect_group(world, context, std::move(name), std::move(ranks),
                         channel ? options.channel_max_ctas : 0, channel);
  });
  if (options.use_tensor_copy_engines && grid[Axis::tensor] > 1)
    groups.tensor_peer_transport_ =
        connect_tensor_copies(world, context, groups.tensor(), options.tensor_copy_engines_optional);
  return groups;
}

void Groups::set_gradient_ranks(GradientGroup group, std::unique_ptr<Communicator> ranks) {
  gradient_ranks_[static_cast<size_t>(group)] = made_.emplace_back(std::move(ranks)).get();
}

Communicator& Groups::channel(Channel which) const {
  Communicator* found = channels_[static_cast<size_t>(which)];
  TE_CHECK(found != nullptr, "channel {}: a pipeline of one stage has no channels", static_cast<int>(which));
  return *found;
}

}  // namespace te::parallel
