#include "parallel/peer_links.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/profile.h"
#include "parallel/flight_recorder.h"
#include "parallel/operation.h"
#include "parallel/peer_counters.h"
#include "parallel/peer_memory.h"
#include "parallel/watchdog.h"
#include "parallel/world.h"

namespace te::parallel {
namespace {

/// Counters of a stage, one of each kind per direction, which a neighbor writes. Each has one writer: for forward, the
/// previous stage writes arrivals and the next stage writes consumed tensors; for backward, vice versa.
enum class LinkSignal : uint8_t {
  greeting,  ///< the memory has been opened
  arrived,   ///< number of tensors that have arrived
  taken,     ///< number of tensors that the receiver has consumed
};
constexpr size_t kDirections = 2;
/// A step with many microbatches launches hundreds of operations on four links ahead of the device: the flight recorder
/// must still have the one that hangs.
constexpr size_t kKeptOperations = 512;

class CopyLinks final : public PeerLinks {
 public:
  CopyLinks(World& world, const Context& context, std::vector<int> stages,
            const std::array<Communicator*, kChannels>& channels, const std::string& key);
  ~CopyLinks() override { Watchdog::remove_probe(probe_); }

  std::unique_ptr<RegisteredBuffers> register_buffers(const Context& context, const Tensor& memory,
                                                      int buffers) override;
  void wait_until_free(const Context& context, Channel to) override;
  void send(const Context& lane, const Tensor& message, Channel to) override;
  void receive(const Context& context, const Tensor& into, Channel from) override;

 private:
  class Buffers;

  /// The group rank of the neighbor.
  int peer(Channel channel) const {
    const bool next = channel == Channel::forward_to_next || channel == Channel::backward_from_next;
    return (group_.rank() + (next ? 1 : group_.size() - 1)) % group_.size();
  }
  void write_counter(const Context& stream, Channel channel, LinkSignal signal, uint64_t messages) const {
    counters_.write_counter(stream, peer(channel), counter(channel, signal), static_cast<uint32_t>(messages));
  }
  void wait_for(const Context& stream, Channel channel, LinkSignal signal, uint64_t messages) const {
    counters_.wait_for(stream, counter(channel, signal), static_cast<uint32_t>(messages));
  }
  static size_t counter(Channel channel, LinkSignal signal) {
    return static_cast<size_t>(signal) * kDirections + (is_forward(channel) ? 0 : 1);
  }
  const Communicator& link(Channel channel) const { return *channels_[static_cast<size_t>(channel)]; }
  /// Number of tensors that have been sent to the link or received from it.
  uint64_t& count(Channel channel) { return counts_[static_cast<size_t>(channel)]; }
  /// The receive buffers; checks that the tensor fits into a buffer.
  const Buffers& buffers(Channel channel, const Tensor& message) const;
  void launched(const Context& context, const char* name, Channel channel);

  World& world_;
  UnconnectedCommunicator group_;  ///< names the stages; not used for communication
  std::array<Communicator*, kChannels> channels_;
  std::string key_;
  PeerCounters counters_;
  Buffers* buffers_ = nullptr;  ///< the registered buffers, if any
  std::array<uint64_t, kChannels> counts_{};
  FlightRecorder flight_recorder_;
  int probe_ = 0;
};

/// Registered receive buffers of all stages. The links use them until destruction.
class CopyLinks::Buffers final : public RegisteredBuffers {
 public:
  Buffers(CopyLinks& links, const Context& context, const Tensor& memory, int buffers)
      : links_(links),
        number_(static_cast<uint64_t>(buffers)),
        bytes_(memory.bytes() / (kDirections * static_cast<size_t>(buffers))),
        memory_(links.world_, context, links.group_, memory.data, memory.bytes(),
                fmt::format("{} receive buffers of {} bytes", buffers, bytes_), links.key_) {
    links_.buffers_ = this;
  }
  ~Buffers() override { links_.buffers_ = nullptr; }

  uint64_t number() const { return number_; }
  size_t bytes() const { return bytes_; }
  /// Address of the buffer for tensor `index` of the channel's direction at group rank `rank`.
  char* at(int rank, Channel channel, uint64_t index) const {
    const uint64_t buffer = (is_forward(channel) ? 0 : number_) + index % number_;
    return memory_.at(rank) + buffer * bytes_;
  }

 private:
  CopyLinks& links_;
  uint64_t number_;  ///< number of buffers per direction
  size_t bytes_;     ///< size of a buffer
  PeerMemory memory_;
};

// --- construction and registration -------------------------------------------------------------------------

UnconnectedCommunicator stages_group(const World& world, std::vector<int> stages) {
  const auto own = std::find(stages.begin(), stages.end(), world.rank()) - stages.begin();
  return {"pipeline", std::move(stages), static_cast<int>(own)};
}

CopyLinks::CopyLinks(World& world, const Context& context, std::vector<int> stages,
                     const std::array<Communicator*, kChannels>& channels, const std::string& key)
    : world_(world),
      group_(stages_group(world, std::move(stages))),
      channels_(channels),
      key_(key),
      counters_(world, context, group_, key),
      flight_recorder_(context, kKeptOperations) {
  // Exchanges a signal now, so that a driver that does not support this fails here.
  const Watchdog::Guard guard(context, "the first signal of group " + group_.name());
  for (const Channel to : {Channel::forward_to_next, Channel::backward_to_previous})
    write_counter(context, to, LinkSignal::greeting, 1);
  for (const Channel from : {Channel::forward_from_previous, Channel::backward_from_next})
    wait_for(context, from, LinkSignal::greeting, 1);
  context.synchronize();
  probe_ = Watchdog::add_probe([this](bool find_pending) {
    return Watchdog::Report{.error = "", .pending = find_pending ? flight_recorder_.oldest_pending() : ""};
  });
}

std::unique_ptr<PeerLinks::RegisteredBuffers> CopyLinks::register_buffers(const Context& context,
                                                                          const Tensor& memory, int buffers) {
  TE_CHECK(buffers > 0 && memory.numel() % (2 * int64_t{buffers}) == 0,
           "group {}: memory of shape {} for 2 x {} receive buffers", group_.name(), memory.shape.str(),
           buffers);
  TE_CHECK(buffers_ == nullptr, "group {}: receive buffers are already registered", group_.name());
  return std::make_unique<Buffers>(*this, context, memory, buffers);
}

const CopyLinks::Buffers& CopyLinks::buffers(Channel channel, const Tensor& message) const {
  TE_CHECK(buffers_ != nullptr, "{}: no receive buffers are registered", link(channel).name());
  TE_CHECK(message.bytes() <= buffers_->bytes(), "{}: a tensor of {} bytes exceeds the receive buffers of {}",
           link(channel).name(), message.bytes(), buffers_->bytes());
  return *buffers_;
}

/// Called after every operation, for the watchdog.
void CopyLinks::launched(const Context& context, const char* name, Channel channel) {
  if (Watchdog::timeout() == 0) return;
  const Operation operation(name, link(channel), context);
  const std::string_view activity = ScopedActivity::current();
  flight_recorder_.add(context, fmt::format("{}{}{}", Operation::describe_current(),
                                            activity.empty() ? "" : ", during ", activity));
}

// --- send and receive --------------------------------------------------------------------------------------

void CopyLinks::wait_until_free(const Context& context, Channel to) {
  TE_CHECK(sends(to), "{}: this rank is the receiver of the link", link(to).name());
  if (OpObserver::is_tracing()) return;
  const uint64_t index = count(to), number = buffers(to, {}).number();
  if (index < number) return;
  wait_for(context, to, LinkSignal::taken, index - number + 1);
  launched(context, "wait to send", to);
}

void CopyLinks::send(const Context& lane, const Tensor& message, Channel to) {
  TE_CHECK(sends(to), "{}: this rank is the receiver of the link", link(to).name());
  const ProfileScope scope(lane, "send", static_cast<double>(message.bytes()), link(to).name());
  if (scope.traced_only()) return;
  const Buffers& there = buffers(to, message);
  const uint64_t index = count(to)++;
  copy_bytes(lane, there.at(peer(to), to, index), message.data, message.bytes());
  write_counter(lane, to, LinkSignal::arrived, index + 1);
  launched(lane, "send", to);
}

void CopyLinks::receive(const Context& context, const Tensor& into, Channel from) {
  TE_CHECK(!sends(from), "{}: this rank is the sender of the link", link(from).name());
  const ProfileScope scope(context, "receive", static_cast<double>(into.bytes()), link(from).name());
  if (scope.traced_only()) return;
  const Buffers& here = buffers(from, into);
  const uint64_t index = count(from)++;
  wait_for(context, from, LinkSignal::arrived, index + 1);
  context.copy(into, {here.at(group_.rank(), from, index), into.dtype, into.shape});
  write_counter(context, from, LinkSignal::taken, index + 1);
  launched(context, "receive", from);
}

}  // namespace

std::unique_ptr<PeerLinks> make_peer_links(World& world, const Context& context, std::vector<int> stages,
                                           const std::array<Communicator*, kChannels>& channels,
                                           const std::string& key) {
  return std::make_unique<CopyLinks>(world, context, std::move(stages), channels, key);
}

}  // namespace te::parallel
