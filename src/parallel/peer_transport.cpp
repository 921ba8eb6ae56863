#include "parallel/peer_transport.h"

#include "core/error.h"
#include "parallel/peer_pieces.h"

namespace te::parallel {
namespace {

class GroupTransport final : public PeerTransport {
 public:
  explicit GroupTransport(Communicator& group) : group_(group) {}

  std::unique_ptr<RegisteredMemory> register_memory(const Context&, void*, size_t,
                                                    const std::string&) override {
    return std::make_unique<RegisteredMemory>();
  }

  void gather(const Context& context, const Tensor& shard, const Tensor& full, int pieces,
              const Work& work) override {
    const PeerPieces cut = pieces_of(full, pieces);
    group_.all_gather(context, shard, full);
    for (int step = 0; step < pieces && work; ++step) work(cut.gathered(step) * cut.piece(), cut.piece());
  }

  void reduce(const Context& context, const Tensor& full, const Tensor& shard, const Tensor& slots,
              int pieces, const Work& produce, const std::function<void()>& overlapped_work) override {
    const PeerPieces cut = pieces_of(full, pieces);
    TE_CHECK(slots.numel() >= (group_.size() - 1) * shard.numel(),
             "group {}: slots of shape {} are too small for shards of shape {}", group_.name(),
             slots.shape.str(), shard.shape.str());
    for (int step = 0; step < pieces; ++step) produce(cut.reduced(step) * cut.piece(), cut.piece());
    if (overlapped_work) overlapped_work();
    group_.reduce_scatter(context, full, shard);
  }

 private:
  PeerPieces pieces_of(const Tensor& full, int pieces) const {
    const PeerPieces cut{group_.size(), group_.rank(), pieces, full.rows()};
    TE_CHECK(cut.valid(), "group {}: shape {} cannot be divided into {} pieces", group_.name(),
             full.shape.str(), pieces);
    return cut;
  }

  Communicator& group_;
};

}  // namespace

std::unique_ptr<PeerTransport> make_group_transport(Communicator& group) {
  return std::make_unique<GroupTransport>(group);
}

}  // namespace te::parallel
