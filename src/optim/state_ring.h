// Optimizer state in host memory: in each step it passes through device memory in chunks, in a ring of slots. Each
// chunk is fetched, updated in its slot, and written back.
//
//   fetch stream      | fetch 0 | fetch 1 | fetch 2 | fetch 3 |     fetch 4       | fetch 5 | ...
//   the step's stream                        norm   | update 0 | update 1 | update 2 | ...
//   write stream                                               | write 0  | write 1  | write 2 | ...
//
// With four slots, chunk 4 uses the slot of chunk 0. A host link transfers in both directions at once, so a step takes
// about the time of one direction. The first chunks are fetched during the step's passes (begin()), and the last ones
// are written during those of the next step. Other code must call wait_offload() before it accesses the host memory.
#pragma once

#include <optional>
#include <vector>

#include "core/device.h"
#include "core/tensor.h"

namespace te::optim {

class StateRing {
 public:
  /// Elements of a shard that share a slot.
  struct Chunk {
    int64_t first = 0, count = 0;
  };

  /// Adds a buffer: host memory of the whole shard, and the slots' memory, with one value per `elements` elements. Both
  /// tensors must stay at their addresses.
  void pass(const Tensor& host, const Tensor& slots, int64_t elements);
  bool empty() const { return buffers_.empty(); }

  /// Sets `slots` slots of `slot_elements` elements each.
  void lay_out(std::vector<Chunk> chunks, int slots, int64_t slot_elements);

  /// Starts to fetch the first chunks, after the work launched on the context so far. Once per step; fetch() calls it
  /// if needed.
  void begin(const Context& context);
  /// Makes later work on the context wait until the chunk is in its slot. Chunks are fetched in order, each followed by
  /// its write_back(). Returns the first element in the slots' memory.
  int64_t fetch(const Context& context, size_t chunk);
  /// Writes the slot back to the host, after the work launched on the context so far.
  void write_back(const Context& context, size_t chunk);

  /// Waits until the host memory has the result of the last step. Not between begin() and the last write_back().
  void wait_offload() const;

 private:
  struct Buffer {
    const Tensor *host, *slots;
    int64_t elements;
    Tensor of_host(const Chunk& chunk) const;
    Tensor of_slots(int64_t first, int64_t count) const;
  };
  /// One event per slot.
  using Events = std::vector<Event>;

  void make_streams(const Context& context);
  void start_fetch(size_t chunk);
  size_t slot_of(size_t chunk) const { return chunk % static_cast<size_t>(slots_); }
  int64_t first_of_slot(size_t chunk) const { return static_cast<int64_t>(slot_of(chunk)) * slot_elements_; }

  std::vector<Buffer> buffers_;
  std::vector<Chunk> chunks_;
  int slots_ = 0;
  int64_t slot_elements_ = 0;

  std::optional<Context> fetching_, writing_;
  std::optional<Event> launched_;
  Events fetched_, written_;
  size_t started_ = 0;  ///< chunks whose fetch has been launched in this step
};

}  // namespace te::optim
