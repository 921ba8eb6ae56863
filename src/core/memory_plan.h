// Plan, then run. Components name every buffer they will need before the first step; the plan is a table that
// --dry-run prints and the arena allocates in one piece. Nothing allocates device memory after that.
//
// A component passes the Tensor member that shall point at the memory: plan.add(slot, ...) fills dtype and
// shape at once and allocate() fills the pointer, so a slot must not move in between (components that plan
// are not copied or moved).
//
// What is alive in some steps only is scratch: it is planned with its Lifetime, and packed (core/scratch_packing.h).
//
// A buffer may be host memory instead: page-locked beside a GPU, so that copies run beside other work, and so that
// kernels can read and write it, too, slowly.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/device.h"
#include "core/scratch_packing.h"
#include "core/tensor.h"

namespace te {

/// What a buffer is for: the rows of the memory table shown at start-up.
enum class MemoryKind : uint8_t {
  parameters,
  fp8_weights,
  main_params,
  main_grads,
  optimizer,
  offload_slots,
  activations,
  scratch,
  fp8_state,
  data
};
constexpr int kMemoryKinds = 10;
std::string_view memory_kind_name(MemoryKind kind);

/// Where a buffer is.
enum class MemoryPlace : uint8_t { device, host };

class MemoryPlan {
 public:
  MemoryPlan() = default;
  MemoryPlan(const MemoryPlan&) = delete;

  /// Asks for a buffer of `shape` for `slot`. `name` is for messages and tables ("layers.0.fc1.out").
  /// With a lifetime the buffer is scratch, whatever its kind. Names that differ in numbers only ("layers.0.d_act",
  /// "layers.1.d_act") are one buffer, of the largest size and alive in all their steps: layers live through the same
  /// steps one after another. InternalError when one name is asked for with two shapes or lifetimes.
  void add(Tensor& slot, std::string name, MemoryKind kind, DType dtype, Shape shape, Lifetime lifetime = {});
  /// The same in host memory.
  void add_host(Tensor& slot, std::string name, MemoryKind kind, DType dtype, Shape shape);
  /// The one or the other.
  void add(MemoryPlace place, Tensor& slot, const std::string& name, MemoryKind kind, DType dtype,
           Shape shape);
  /// Makes `slot` another view of `owner`, a slot already added: the same elements for as long.
  void alias(Tensor& slot, const Tensor& owner);

  /// Buffers of several parts of which one at a time is in use: add_part(0) .. add_part(parts - 1) add them, each
  /// part's begin at the same place, and together they take what the largest takes, whose buffers alone are counted.
  /// Scratch and host memory that a part adds are shared or not as ever. No part adds parts of its own.
  void overlay(int parts, const std::function<void(int part)>& add_part);

  /// Of the device. Scratch counts once it is packed.
  int64_t bytes(MemoryKind kind) const;
  int64_t total_bytes() const;
  /// Of the host.
  int64_t host_bytes(MemoryKind kind) const;
  int64_t total_host_bytes() const { return host_end_; }
  /// A line per kind and the total, for people; behind it the same of host memory, where there is some.
  std::string table() const;
  /// A line per buffer, largest first: what --dry-run shows with --verbose.
  std::string buffers() const;

  /// Allocates everything on the device as one block, zeroed, and fills its slots. Call once.
  DeviceBuffer allocate(const Context& context);
  /// The same of host memory; empty where none was asked for. UserError when it cannot be had.
  HostBuffer allocate_host(const Context& context);

  /// Fills all slots with addresses at which there is no memory: for passes that are only rehearsed
  /// (OpObserver::executes). Instead of allocate().
  void bind_fake_addresses();

  /// For tests: the timeline goes on to `step`. Scratch whose life begins or has ended is overwritten with NaN, so that
  /// a use outside the lifetime cannot go unnoticed. After allocate().
  void begin_step(const Context& context, int step);

 private:
  struct Entry {
    Tensor* slot;
    std::string name;
    MemoryKind kind;
    int64_t bytes;
    int64_t offset;
    bool counted = true;  ///< false: of a part of an overlay that is not its largest
  };
  struct Alias {
    Tensor* slot;
    const Tensor* owner;
  };
  struct ScratchSlot {
    Tensor* slot;
    size_t buffer;  ///< of scratch_
  };
  void add_scratch(Tensor& slot, const std::string& name, Lifetime lifetime);
  void fill_slots(void* block, std::vector<ScratchBuffer> buffers);
  /// The scratch buffers with their offsets, behind `end_`, and the bytes of all.
  std::pair<std::vector<ScratchBuffer>, int64_t> packed() const;

  std::vector<Entry> entries_;
  std::vector<Entry> host_entries_;
  std::vector<Alias> aliases_;
  std::vector<ScratchBuffer> scratch_;
  std::vector<ScratchSlot> scratch_slots_;
  std::map<std::string, std::pair<Tensor, Lifetime>> scratch_requests_;  ///< by full name
  int64_t end_ = 0;                                                      ///< of the entries
  int64_t host_end_ = 0;                                                 ///< of the host's entries
  void* block_ = nullptr;
  int step_ = -1;
};

/// "1.25 GiB", "340.0 MiB", "512 B".
std::string human_bytes(int64_t bytes);

}  // namespace te
