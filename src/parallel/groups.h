// The communicators of one rank: its groups in the process grid and, with a pipeline, its channels to the neighboring
// stages. A channel is a communicator of two ranks: rank 0 sends and rank 1 receives.
//
// On the CPU a send does not block, so a schedule cannot deadlock if every receive has a send. On a GPU each channel
// has a separate CUDA stream (Context::side), but NCCL kernels of several channels may still wait for each other, for
// example with large activations and several virtual stages.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "core/parameter_id.h"
#include "parallel/channel.h"
#include "parallel/communicator.h"
#include "parallel/peer_transport.h"
#include "parallel/process_grid.h"

namespace te::parallel {

class World;

struct ConnectOptions {
  /// Thread blocks that NCCL may use for a channel; NCCL chooses the number for collectives. A channel transfers one
  /// activation at a time, concurrently with GEMMs, which need most of the SMs.
  int channel_max_ctas = 8;
  /// With several tensor-parallel ranks: use a PeerTransport for their tokens. JobFailure if GPUs do not support it.
  bool use_tensor_copy_engines = false;
  /// tensor() is used instead on the CPU, and, with a warning, if GPUs do not support it.
  bool tensor_copy_engines_optional = false;
};

class Groups {
 public:
  /// Groups of a single rank.
  static Groups single();
  /// Groups of `rank` in a grid without connected ranks: groups of more than one rank refuse every operation.
  static Groups dry_run(const ProcessGrid& grid, int rank, const ConnectOptions& options = {});
  /// Like dry_run(), but operations only copy data (dry_run_communicator.h), to measure one rank's computation.
  static Groups no_communication(const ProcessGrid& grid, int rank, const ConnectOptions& options = {});
  /// Connects all ranks of the world; collective. Uses NCCL for a CUDA context, MPI for a CPU context. The grid must
  /// have as many ranks as the world.
  static Groups connect(World& world, const Context& context, const ProcessGrid& grid,
                        const ConnectOptions& options = {});

  Groups(Groups&&) = default;
  Groups& operator=(Groups&&) = delete;
  /// Destroys the communicators; NCCL may wait for the other ranks to do so, too. The Context must still exist.
  ~Groups();

  const ProcessGrid& grid() const { return grid_; }
  int rank() const { return rank_; }
  const Coordinates& at() const { return at_; }
  bool first_stage() const { return at_[Axis::pipeline] == 0; }
  bool last_stage() const { return at_[Axis::pipeline] == grid_[Axis::pipeline] - 1; }

  /// A group of kGroups (process_grid.h).
  Communicator& of(Group group) const { return *groups_[static_cast<size_t>(group)]; }
  Communicator& world() const { return of(Group::world); }
  Communicator& tensor() const { return of(Group::tensor); }
  Communicator& context() const { return of(Group::context); }
  Communicator& microbatch() const { return of(Group::microbatch); }
  Communicator& data() const { return of(Group::data); }
  Communicator& stage() const { return of(Group::stage); }
  Communicator& embedding() const { return of(Group::embedding); }
  Communicator& expert() const { return of(Group::expert); }

  /// The ranks that sum the gradients of this group's parameters and shard their master weights and moments.
  Communicator& gradient_ranks(GradientGroup group) const {
    return *gradient_ranks_[static_cast<size_t>(group)];
  }
  /// Replaces the ranks of a gradient group with some of them. In the same order on all ranks.
  void set_gradient_ranks(GradientGroup group, std::unique_ptr<Communicator> ranks);

  /// Copy-engine transport for tokens of tensor-parallel ranks; null if tensor() is used instead.
  PeerTransport* tensor_peer_transport() const { return tensor_peer_transport_.get(); }

  /// A channel to a neighboring stage. InternalError with only one stage.
  Communicator& channel(Channel which) const;
  void send(const Context& context, const Tensor& t, Channel which) const {
    channel(which).send(context, t, 1);
  }
  void receive(const Context& context, const Tensor& t, Channel which) const {
    channel(which).receive(context, t, 0);
  }

 private:
  Groups() = default;
  template <class Made>
  static Groups unconnected(const ProcessGrid& grid, int rank, const ConnectOptions& options);
  template <class Make>
  static Groups make(const ProcessGrid& grid, int rank, Make&& make_group);
  Communicator*& slot(Channel which) { return channels_[static_cast<size_t>(which)]; }

  ProcessGrid grid_;
  int rank_ = 0;
  Coordinates at_;
  std::vector<std::unique_ptr<Communicator>>
      made_;  // in the order in which all ranks create and destroy them
  std::array<Communicator*, std::size(kGroups)> groups_{};
  std::array<Communicator*, kGradientGroups.size()> gradient_ranks_{};
  std::array<Communicator*, kChannels> channels_{};
  std::unique_ptr<PeerTransport> tensor_peer_transport_;
};

}  // namespace te::parallel
