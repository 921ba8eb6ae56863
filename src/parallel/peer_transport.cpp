#include "parallel/peer_transport.h"

#include "core/error.h"
#include "parallel/peer_chunks.h"

namespace te::parallel {
namespace {

class GroupTransport final : public PeerTransport {
 public:
  explicit GroupTransport(Communicator& group) : group_(group) {}

  std::unique_ptr<RegisteredMemory> register_memory(const Context&, void*, size_t,
                                                    const std::string&) override {
    return std::make_unique<RegisteredMemory>();
  }

  void gather(const Context& context, const Tensor& shard, const Tensor& full, int chunks,
              const Work& work) override {
    const PeerChunks order = chunks_of(full, chunks);
    group_.all_gather(context, shard, full);
    for (int step = 0; step < chunks && work; ++step)
      work(order.gathered(step) * order.chunk(), order.chunk());
  }

  void reduce(const Context& context, const Tensor& full, const Tensor& shard, const Tensor& slots,
              int chunks, const Work& produce, const std::function<void()>& overlapped_work) override {
    const PeerChunks order = chunks_of(full, chunks);
    TE_CHECK(slots.numel() >= (group_.size() - 1) * shard.numel(),
             "group {}: slots of shape {} are too small for shards of shape {}", group_.name(),
             slots.shape.str(), shard.shape.str());
    for (int step = 0; step < chunks; ++step) produce(order.reduced(step) * order.chunk(), order.chunk());
    if (overlapped_work) overlapped_work();
    group_.reduce_scatter(context, full, shard);
  }

 private:
  PeerChunks chunks_of(const Tensor& full, int chunks) const {
    const PeerChunks order{group_.size(), group_.rank(), chunks, full.rows()};
    TE_CHECK(order.valid(), "group {}: shape {} cannot be divided into {} chunks", group_.name(),
             full.shape.str(), chunks);
    return order;
  }

  Communicator& group_;
};

}  // namespace

std::unique_ptr<PeerTransport> make_group_transport(Communicator& group) {
  return std::make_unique<GroupTransport>(group);
}

}  // namespace te::parallel
