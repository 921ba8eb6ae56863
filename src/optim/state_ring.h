// State of an optimizer that is in host memory, and how it passes the device: in chunks through a ring of slots, each
// fetched, updated there, and written back.
//
//   fetching stream   | fetch 0 | fetch 1 | fetch 2 | fetch 3 |     fetch 4       | fetch 5 | ...
//   the step's stream                        norm   | update 0 | update 1 | update 2 | ...
//   writing stream                                             | write 0  | write 1  | write 2 | ...
//
// With four slots chunk 4 comes into the slot that chunk 0 has left. A link carries both directions at once, so a step
// takes about the time of one of them. The first chunks are fetched while the step's passes run (begin()), the last
// ones written while those of the next step do: nobody else reads or writes the host memory then without
// wait_offload().
#pragma once

#include <optional>
#include <vector>

#include "core/device.h"
#include "core/tensor.h"

namespace te::optim {

class StateRing {
 public:
  /// Elements of a shard that are in a slot together.
  struct Chunk {
    int64_t first = 0, count = 0;
  };

  /// Host memory of a whole shard and the slots' memory of it: a value for each `elements` elements. Both must stay
  /// where they are.
  void pass(const Tensor& host, const Tensor& slots, int64_t elements);
  bool empty() const { return buffers_.empty(); }

  /// `slots` slots of `slot_elements` elements.
  void lay_out(std::vector<Chunk> chunks, int slots, int64_t slot_elements);

  /// Launches the fetches of the first chunks, behind the work that has been launched on the context so far. Once a
  /// step; fetch() does it where nobody has.
  void begin(const Context& context);
  /// Work launched on the context from now on sees the chunk in its slot. Chunks in their order, each followed by its
  /// write_back(). Returns the first element in the slots' memory.
  int64_t fetch(const Context& context, size_t chunk);
  /// The slot goes back to the host, behind the work that has been launched on the context so far.
  void write_back(const Context& context, size_t chunk);

  /// Waits until the host memory holds what the last step has made. Not between begin() and the last write_back().
  void wait_offload() const;

 private:
  struct Buffer {
    const Tensor *host, *slots;
    int64_t elements;
    Tensor of_host(const Chunk& chunk) const;
    Tensor of_slots(int64_t first, int64_t count) const;
  };
  /// A point in a stream's work, for each slot.
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
