#include "optim/state_ring.h"

#include <algorithm>
#include <utility>

#include "core/profile.h"

#include "parameters/parameter_store.h"

namespace te::optim {

using parameters::ParameterStore;

void StateRing::pass(const Tensor& host, const Tensor& slots, int64_t elements) {
  TE_CHECK(host.dtype == slots.dtype, "state of {} passes through slots of {}", dtype_name(host.dtype),
           dtype_name(slots.dtype));
  buffers_.push_back({&host, &slots, elements});
}

void StateRing::lay_out(std::vector<Chunk> chunks, int slots, int64_t slot_elements) {
  chunks_ = std::move(chunks);
  slots_ = slots;
  slot_elements_ = slot_elements;
  for (const Chunk& chunk : chunks_) {
    TE_CHECK(chunk.count <= slot_elements, "a chunk of {} elements in slots of {}", chunk.count,
             slot_elements);
  }
}

// Rounds up: a shard may end in the middle of the elements that one value stands for.
Tensor StateRing::Buffer::of_host(const Chunk& chunk) const {
  return ParameterStore::part(*host, chunk.first / elements, (chunk.count + elements - 1) / elements);
}

Tensor StateRing::Buffer::of_slots(int64_t first, int64_t count) const {
  return ParameterStore::part(*slots, first / elements, (count + elements - 1) / elements);
}

void StateRing::make_streams(const Context& context) {
  if (fetching_) return;
  fetching_.emplace(context.side());
  writing_.emplace(context.side());
  launched_.emplace(context);
  for (int slot = 0; slot < slots_; ++slot) fetched_.emplace_back(context), written_.emplace_back(context);
}

void StateRing::start_fetch(size_t chunk) {
  TE_CHECK(chunk == started_, "chunk {} is fetched, but {} is next", chunk, started_);
  const ProfileLabel label("offload");
  written_[slot_of(chunk)].wait(*fetching_);  // by the slot's previous chunk, perhaps in the last step
  for (const Buffer& buffer : buffers_) {
    fetching_->copy_to_device(buffer.of_slots(first_of_slot(chunk), chunks_[chunk].count),
                              buffer.of_host(chunks_[chunk]).data);
  }
  fetched_[slot_of(chunk)].record(*fetching_);
  ++started_;
}

// Work launched on the context may still write the host memory: a checkpoint load, initial weights.
void StateRing::begin(const Context& context) {
  if (empty() || started_ > 0) return;
  make_streams(context);
  launched_->record(context);
  launched_->wait(*fetching_);
  const size_t first = std::min(chunks_.size(), static_cast<size_t>(slots_));
  while (started_ < first) start_fetch(started_);
}

int64_t StateRing::fetch(const Context& context, size_t chunk) {
  begin(context);
  TE_CHECK(chunk < started_, "chunk {} is used, but only {} have been fetched", chunk, started_);
  const ProfileScope scope(context, "wait_for_state", 0.0);
  fetched_[slot_of(chunk)].wait(context);
  return first_of_slot(chunk);
}

void StateRing::write_back(const Context& context, size_t chunk) {
  launched_->record(context);
  launched_->wait(*writing_);
  for (const Buffer& buffer : buffers_) {
    const ProfileLabel label("offload");
    writing_->copy_to_host(buffer.of_host(chunks_[chunk]).data,
                           buffer.of_slots(first_of_slot(chunk), chunks_[chunk].count));
  }
  written_[slot_of(chunk)].record(*writing_);
  if (started_ < chunks_.size()) start_fetch(started_);
  if (chunk + 1 == chunks_.size()) started_ = 0;  // reset for the next step
}

void StateRing::wait_offload() const {
  TE_CHECK(started_ == 0, "the optimizer state is read while a step is using it");
  if (writing_) writing_->synchronize();
}

}  // namespace te::optim
