// The communicators of one rank: its groups in the process grid and, with a pipeline, its channels to the
// neighbouring stages: each a communicator of two ranks, of which rank 0 sends and rank 1 receives.
//
// On the CPU, where a send does not wait, no schedule whose receives have their sends can deadlock. On a GPU each
// channel is given a stream of its own (Context::side), and NCCL's kernels of several channels may still wait for each
// other there, as large messages of several virtual stages do: peer_links.h has links without such kernels.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "parallel/channel.h"
#include "parallel/communicator.h"
#include "parallel/peer_links.h"
#include "parallel/peer_transport.h"
#include "parallel/process_grid.h"

namespace te::parallel {

class World;

struct ConnectOptions {
  /// Thread blocks that NCCL may use for a channel; the collectives' number is NCCL's own choice. A channel moves
  /// one activation at a time beside the GEMMs, which want the rest of the chip.
  int channel_max_ctas = 8;
  /// With several tensor ranks: their tokens travel by a PeerTransport. JobFailure where GPUs cannot do that.
  bool use_tensor_copy_engines = false;
  /// With several data ranks: likewise the gradients and values of their buckets.
  bool use_data_copy_engines = false;
  /// With several stages, on GPUs: the stream and its gradient travel by PeerLinks. JobFailure where GPUs cannot do
  /// that. On the CPU the channels carry them.
  bool use_pipeline_copy_engines = false;
};

class Groups {
 public:
  /// One rank alone.
  static Groups single();
  /// The place of `rank` in a grid without its ranks: groups of more than one rank refuse every operation.
  static Groups dry_run(const ProcessGrid& grid, int rank, const ConnectOptions& options = {});
  /// The same, with operations that talk to nobody (dry_run_communicator.h): for measuring one rank's own work.
  static Groups no_communication(const ProcessGrid& grid, int rank, const ConnectOptions& options = {});
  /// Connects all ranks of the world; collective. NCCL for a CUDA context, MPI for a CPU one. The grid must have
  /// as many ranks as the world.
  static Groups connect(World& world, const Context& context, const ProcessGrid& grid,
                        const ConnectOptions& options = {});

  Groups(Groups&&) = default;
  Groups& operator=(Groups&&) = delete;
  /// Ends the communicators; NCCL may wait for the other ranks to do so too. The Context must still be there.
  ~Groups();

  const ProcessGrid& grid() const { return grid_; }
  int rank() const { return rank_; }
  const Coordinates& at() const { return at_; }
  bool first_stage() const { return at_.pipeline == 0; }
  bool last_stage() const { return at_.pipeline == grid_.pipeline - 1; }

  // Groups as process_grid.h defines them.
  Communicator& world() const { return *world_; }
  Communicator& tensor() const { return *tensor_; }
  Communicator& context() const { return *context_; }
  Communicator& microbatch() const { return *microbatch_; }
  Communicator& data() const { return *data_; }
  Communicator& stage() const { return *stage_; }
  Communicator& embedding() const { return *embedding_; }

  /// By which the tensor ranks' tokens travel; null where tensor() does it.
  PeerTransport* tensor_peer_transport() const { return tensor_peer_transport_.get(); }
  /// By which buckets of gradients and values travel; null where data() does it.
  PeerTransport* data_peer_transport() const { return data_peer_transport_.get(); }

  /// By which the stream and its gradient travel between stages; null where the channels carry them, as on the CPU.
  PeerLinks* pipeline_peer_links() const { return pipeline_peer_links_.get(); }

  /// Only with more than one stage.
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
  std::vector<std::unique_ptr<Communicator>> made_;  // in the order in which all ranks make and end them
  Communicator *world_ = nullptr, *tensor_ = nullptr, *context_ = nullptr, *microbatch_ = nullptr,
               *data_ = nullptr, *stage_ = nullptr, *embedding_ = nullptr;
  std::array<Communicator*, kChannels> channels_{};
  std::unique_ptr<PeerTransport> tensor_peer_transport_, data_peer_transport_;
  std::unique_ptr<PeerLinks> pipeline_peer_links_;
};

}  // namespace te::parallel
