#include "parallel/peer_transport.h"

#include <algorithm>
#include <vector>

#include "core/profile.h"
#include "parallel/flight_recorder.h"
#include "parallel/operation.h"
#include "parallel/peer_chunks.h"
#include "parallel/peer_counters.h"
#include "parallel/peer_memory.h"
#include "parallel/rank_sum.h"
#include "parallel/watchdog.h"
#include "parallel/world.h"

namespace te::parallel {
namespace {

/// Signals from one rank to another: each is a separate counter in the other rank's memory.
enum class Signal : uint8_t {
  greeting,  ///< the memory has been opened
  writable,  ///< number of all-gathers whose tensor on the signaling rank may be written
  arrived,   ///< number of transfers that the signaling rank has written
  consumed,  ///< number of reductions whose addends the signaling rank has read
};
constexpr size_t kSignals = 4;
static_assert(kSignals * kMaxSummedRanks <= PeerCounters::kMax);

class CopyTransport final : public PeerTransport {
 public:
  CopyTransport(World& world, const Context& context, const Communicator& group, const std::string& key);
  ~CopyTransport() override;

  std::unique_ptr<RegisteredMemory> register_memory(const Context& context, void* memory, size_t bytes,
                                                    const std::string& layout) override;
  void gather(const Context& context, const Tensor& shard, const Tensor& full, int chunks,
              const Work& work) override;
  void reduce(const Context& context, const Tensor& full, const Tensor& shard, const Tensor& slots,
              int chunks, const Work& produce, const std::function<void()>& overlapped_work) override;

 private:
  class RegisteredBlock;
  struct Reduction;

  int rank() const { return group_.rank(); }
  int size() const { return group_.size(); }
  /// Index of the counter that rank `from` writes.
  size_t counter(Signal signal, int from) const {
    return static_cast<size_t>(signal) * static_cast<size_t>(size()) + static_cast<size_t>(from);
  }
  void write_counter(const Context& stream, int peer, Signal signal, uint32_t value) const {
    counters_.write_counter(stream, peer, counter(signal, rank()), value);
  }
  void wait_for(const Context& stream, int peer, Signal signal, uint32_t value) const {
    counters_.wait_for(stream, counter(signal, peer), value);
  }
  /// Address in the memory of rank `peer` that corresponds to this rank's `tensor`.
  char* place_at(int peer, const Tensor& tensor) const;
  PeerChunks chunks_of(const Tensor& full, const Tensor& shard, int chunks) const;
  /// Makes later copies wait for the work launched on the context so far. Called before a transfer is timed.
  void begin_copies(const Context& context) {
    ready_.record(context);
    ready_.wait(lane_);
  }
  void push_shard(const Tensor& shard, const Tensor& full, const PeerChunks& order);
  Reduction begin_reduction(Reduction reduction);
  void end_reduction(const Context& context, const Reduction& reduction);
  void push_chunk(const Reduction& reduction, int chunk);
  void sum(const Context& context, const Reduction& reduction);
  void launched(const Context& context, const char* name);
  bool blocking(int chunks) const { return chunks == 1; }

  World& world_;
  const Communicator& group_;
  std::string key_;
  PeerCounters counters_;
  std::vector<const PeerMemory*> registered_;
  Context lane_;  ///< CUDA stream of this rank's copies
  Event ready_, sent_;
  FlightRecorder flight_recorder_;
  uint32_t transfers_ = 0, gathers_ = 0, reductions_ = 0;  ///< counts so far, equal on all ranks
  int probe_ = 0;
};

/// A reduce-scatter in progress.
struct CopyTransport::Reduction {
  const Tensor &full, &shard, &slots;
  PeerChunks order;

  size_t shard_bytes() const { return full.bytes() / static_cast<size_t>(order.ranks); }
  /// The slot of rank `from`'s addend on rank `at`; a rank has no slot for its own addend.
  Tensor slot(int at, int from) const {
    const int64_t rows = order.shard();
    const Tensor all{slots.data, full.dtype, {rows * (order.ranks - 1), full.cols()}};
    return all.slice_rows((from < at ? from : from - 1) * rows, rows);
  }
};

// --- construction and registration -------------------------------------------------------------------------

CopyTransport::CopyTransport(World& world, const Context& context, const Communicator& group,
                             const std::string& key)
    : world_(world),
      group_(group),
      key_(key),
      counters_(world, context, group, key),
      lane_(context.side(true)),
      ready_(context),
      sent_(context),
      flight_recorder_(context) {
  TE_CHECK(group.size() > 1 && group.size() <= kMaxSummedRanks,
           "group {}: {} ranks; copy engines need 2 to {}", group.name(), group.size(), kMaxSummedRanks);
  // Exchanges a signal now, so that a driver that does not support this fails here.
  const Watchdog::Guard guard(context, "the first signal of group " + group.name());
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank()) write_counter(context, peer, Signal::greeting, 1);
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank()) wait_for(context, peer, Signal::greeting, 1);
  context.synchronize();
  probe_ = Watchdog::add_probe([this](bool find_pending) {
    return Watchdog::Report{.error = "", .pending = find_pending ? flight_recorder_.oldest_pending() : ""};
  });
}

CopyTransport::~CopyTransport() {
  Watchdog::remove_probe(probe_);
}

/// Registered memory of all ranks. The transport uses it until destruction.
class CopyTransport::RegisteredBlock final : public RegisteredMemory {
 public:
  RegisteredBlock(CopyTransport& transport, const Context& context, void* memory, size_t bytes,
                  const std::string& layout)
      : transport_(transport),
        memory_(transport.world_, context, transport.group_, memory, bytes, layout, transport.key_) {
    transport_.registered_.push_back(&memory_);
  }
  ~RegisteredBlock() override { std::erase(transport_.registered_, &memory_); }

 private:
  CopyTransport& transport_;
  PeerMemory memory_;
};

std::unique_ptr<PeerTransport::RegisteredMemory> CopyTransport::register_memory(const Context& context,
                                                                                void* memory, size_t bytes,
                                                                                const std::string& layout) {
  return std::make_unique<RegisteredBlock>(*this, context, memory, bytes, layout);
}

char* CopyTransport::place_at(int peer, const Tensor& tensor) const {
  for (const PeerMemory* memory : registered_)
    if (memory->holds(tensor)) return memory->at(peer) + memory->offset(tensor);
  internal_error(
      fmt::format("group {}: a tensor of shape {} that other ranks write is not in registered memory",
                  group_.name(), tensor.shape.str()),
      std::source_location::current());
}

PeerChunks CopyTransport::chunks_of(const Tensor& full, const Tensor& shard, int chunks) const {
  const PeerChunks order{size(), rank(), chunks, full.rows()};
  TE_CHECK(order.valid() && shard.rows() == order.shard() && shard.cols() == full.cols() &&
               shard.dtype == full.dtype,
           "group {}: full shape {} and shard shape {} do not fit {} ranks and {} chunks", group_.name(),
           full.shape.str(), shard.shape.str(), size(), chunks);
  return order;
}

/// Called after every operation, for the watchdog.
void CopyTransport::launched(const Context& context, const char* name) {
  if (Watchdog::timeout() == 0) return;
  const Operation operation(name, group_, context);
  const std::string_view activity = ScopedActivity::current();
  flight_recorder_.add(context, fmt::format("{}{}{}", Operation::describe_current(),
                                            activity.empty() ? "" : ", during ", activity));
}

// --- all-gather --------------------------------------------------------------------------------------------

// Sends to the next lower rank first, because each rank processes the next higher rank's tokens right after its own.
void CopyTransport::push_shard(const Tensor& shard, const Tensor& full, const PeerChunks& order) {
  const size_t bytes = shard.bytes(), transfer = bytes / static_cast<size_t>(order.transfers_per_rank());
  for (int distance = 1; distance < size(); ++distance) {
    const int peer = (rank() + size() - distance) % size();
    char* const there = place_at(peer, full) + static_cast<size_t>(rank()) * bytes;
    wait_for(lane_, peer, Signal::writable, gathers_);
    for (int i = 0; i < order.transfers_per_rank(); ++i) {
      const size_t at = static_cast<size_t>(i) * transfer;
      copy_bytes(lane_, there + at, shard.as<char>() + at, transfer);
      write_counter(lane_, peer, Signal::arrived, transfers_ + static_cast<uint32_t>(i) + 1);
    }
  }
  sent_.record(lane_);
}

void CopyTransport::gather(const Context& context, const Tensor& shard, const Tensor& full, int chunks,
                           const Work& work) {
  const PeerChunks order = chunks_of(full, shard, chunks);
  place_at(rank(), full);  // checks that it is in registered memory
  const Tensor own = full.slice_rows(rank() * order.shard(), order.shard());
  const auto wait_for_rows = [&](int64_t first, int64_t count) {
    for (int from = 0; from < size(); ++from) {
      const int transfers = order.needed(from, first, count);
      if (from != rank() && transfers > 0)
        wait_for(context, from, Signal::arrived, transfers_ + static_cast<uint32_t>(transfers));
    }
  };
  ++gathers_;
  begin_copies(context);
  {
    // A blocking transfer is timed on the context until it is complete, any other on the CUDA stream of the copies.
    const ProfileScope scope(blocking(chunks) ? context : lane_, "all_gather",
                             static_cast<double>(full.bytes()), group_.name());
    // 1. After the work launched so far, the memory of the full tensor may be overwritten.
    for (int peer = 0; peer < size(); ++peer)
      if (peer != rank()) write_counter(context, peer, Signal::writable, gathers_);
    // 2. Send the shard. 3. Copy it to its own position.
    push_shard(shard, full, order);
    if (blocking(chunks)) {
      if (own.data != shard.data) context.copy(own, shard);
      wait_for_rows(0, full.rows());
    }
  }
  if (!blocking(chunks) && own.data != shard.data) context.copy(own, shard);
  // 4. Process chunks as they arrive.
  for (int step = 0; step < chunks; ++step) {
    const int64_t first = order.gathered(step) * order.chunk();
    if (!blocking(chunks)) wait_for_rows(first, order.chunk());
    if (work) work(first, order.chunk());
  }
  // 5. After the sends, the shard may be overwritten.
  sent_.wait(context);
  transfers_ += static_cast<uint32_t>(order.transfers_per_rank());
  launched(context, "all_gather");
}

// --- reduce-scatter ----------------------------------------------------------------------------------------

/// Sends the other ranks' rows in the chunk to their slots.
void CopyTransport::push_chunk(const Reduction& reduction, int chunk) {
  const PeerChunks& order = reduction.order;
  const int ranks = std::max(1, size() / order.chunks), first_rank = chunk * size() / order.chunks;
  if (ranks == 1 && first_rank == rank()) return;  // only this rank's own rows
  const int transfer = chunk % order.transfers_per_rank();
  const size_t bytes = reduction.shard_bytes() / static_cast<size_t>(order.transfers_per_rank());
  for (int step = 1; step <= ranks; ++step) {
    const int peer = first_rank + (rank() + step) % ranks;
    if (peer == rank()) continue;
    const size_t at = static_cast<size_t>(transfer) * bytes;
    const char* const here =
        reduction.full.as<char>() + static_cast<size_t>(peer) * reduction.shard_bytes() + at;
    if (transfer == 0) wait_for(lane_, peer, Signal::consumed, reductions_ - 1);
    copy_bytes(lane_, place_at(peer, reduction.slot(peer, rank())) + at, here, bytes);
    write_counter(lane_, peer, Signal::arrived, transfers_ + static_cast<uint32_t>(transfer) + 1);
  }
  sent_.record(lane_);
}

/// Adds the ranks' addends of this rank's rows, transfer by transfer, as they arrive.
void CopyTransport::sum(const Context& context, const Reduction& reduction) {
  const PeerChunks& order = reduction.order;
  const Tensor own = reduction.full.slice_rows(rank() * order.shard(), order.shard());
  for (int transfer = 0; transfer < order.transfers_per_rank(); ++transfer) {
    const auto rows_of = [&](const Tensor& part) {
      return part.slice_rows(transfer * order.transfer_rows(), order.transfer_rows());
    };
    std::vector<const void*> parts;
    for (int from = 0; from < size(); ++from) {
      if (from != rank())
        wait_for(context, from, Signal::arrived, transfers_ + static_cast<uint32_t>(transfer) + 1);
      parts.push_back(rows_of(from == rank() ? own : reduction.slot(rank(), from)).data);
    }
    const Tensor result = rows_of(reduction.shard);
    const ProfileScope scope(context, "sum_of_ranks",
                             static_cast<double>(result.bytes() * (parts.size() + 1)));
    sum_of_ranks(context, parts, result);
  }
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank()) write_counter(context, peer, Signal::consumed, reductions_);
}

CopyTransport::Reduction CopyTransport::begin_reduction(Reduction reduction) {
  const size_t shard = reduction.shard.bytes();
  TE_CHECK(static_cast<size_t>(size() - 1) * shard <= reduction.slots.bytes(),
           "group {}: slots of {} bytes are too small for {} shards of {} bytes", group_.name(),
           reduction.slots.bytes(), size() - 1, shard);
  ++reductions_;
  return reduction;
}

/// Makes the context wait for the sends: its later work may overwrite the full tensor.
void CopyTransport::end_reduction(const Context& context, const Reduction& reduction) {
  sent_.wait(context);
  transfers_ += static_cast<uint32_t>(reduction.order.transfers_per_rank());
  launched(context, "reduce_scatter");
}

void CopyTransport::reduce(const Context& context, const Tensor& full, const Tensor& shard,
                           const Tensor& slots, int chunks, const Work& produce,
                           const std::function<void()>& overlapped_work) {
  const Reduction reduction = begin_reduction({full, shard, slots, chunks_of(full, shard, chunks)});
  if (blocking(chunks) && !overlapped_work) {
    produce(0, full.rows());
    begin_copies(context);
    {
      const ProfileScope scope(context, "reduce_scatter", static_cast<double>(full.bytes()), group_.name());
      push_chunk(reduction, 0);
      sum(context, reduction);
    }
    return end_reduction(context, reduction);
  }
  for (int step = 0; step < chunks; ++step) {
    const int chunk = reduction.order.reduced(step);
    produce(chunk * reduction.order.chunk(), reduction.order.chunk());
    begin_copies(context);
    const ProfileScope scope(lane_, "reduce_scatter", static_cast<double>(full.bytes()) / chunks,
                             group_.name());
    push_chunk(reduction, chunk);
  }
  if (overlapped_work) overlapped_work();
  sum(context, reduction);
  end_reduction(context, reduction);
}

}  // namespace

std::unique_ptr<PeerTransport> make_peer_transport(World& world, const Context& context,
                                                   const Communicator& group, const std::string& key) {
  return std::make_unique<CopyTransport>(world, context, group, key);
}

}  // namespace te::parallel
