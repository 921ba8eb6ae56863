// Memory plan: components declare all buffers before the first step. --dry-run prints the plan as a table, and
// allocate() allocates all buffers as one block. No device memory is allocated after that.
//
// A component passes the PlannedTensor that will refer to the memory: plan.add(slot, ...) sets dtype and shape
// immediately, allocate() sets the pointer. A slot cannot be copied or moved, and so neither can the component
// (core/planned.h).
//
// Buffers that are used only in some steps are scratch: they are planned with a tag and a Lifetime, and packed
// (core/scratch_packing.h).
//
// A buffer may also be host memory. With a GPU it is page-locked, so that copies run concurrently with other work, and
// kernels can access it (slowly).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/device.h"
#include "core/planned.h"
#include "core/scratch_packing.h"
#include "core/tensor.h"

namespace te {

/// Purpose of a buffer: the rows of the memory table that is printed at startup.
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
TE_NAMES(MemoryKind, "parameters", "FP8 weights", "master weights", "main gradients", "optimizer moments",
         "optimizer.offload slots", "activations", "scratch", "FP8 state", "tokens and losses")
constexpr int kMemoryKinds = static_cast<int>(kMemoryKindNames.size());
static_assert(kMemoryKinds == static_cast<int>(MemoryKind::data) + 1);

/// Location of a buffer.
enum class MemoryPlace : uint8_t { device, host };

class MemoryPlan {
 public:
  MemoryPlan() = default;
  MemoryPlan(const MemoryPlan&) = delete;

  /// Adds a buffer of `shape`, of rank 1 or more, for `slot`. `name` is for messages and tables ("layers.0.fc1.out").
  /// With a lifetime the buffer is scratch, independent of its kind: slots with the same tag are one buffer with the
  /// largest size and the union of the lifetimes, because layers run through the same steps one after another.
  /// InternalError if a name is added with two tags, shapes or lifetimes.
  void add(PlanSlot slot, std::string name, MemoryKind kind, DType dtype, Shape shape, Scratch scratch = {});
  /// Adds a buffer in host memory.
  void add_host(PlanSlot slot, std::string name, MemoryKind kind, DType dtype, Shape shape);
  /// Adds a buffer in device or host memory.
  void add(MemoryPlace place, PlanSlot slot, const std::string& name, MemoryKind kind, DType dtype,
           Shape shape);
  /// Makes `slot` another view of the same memory as `owner`, a slot that is already added.
  void alias(PlanSlot slot, PlanSlot owner);

  /// Adds buffers of several parts that are never in use at the same time: add_part(0) .. add_part(parts - 1) add them.
  /// All parts begin at the same address and together need the memory of the largest part; only its buffers are
  /// counted. Scratch and host memory of a part are not affected. Calls must not be nested.
  void overlay(int parts, const std::function<void(int part)>& add_part);

  /// Bytes of device memory; scratch is counted after packing.
  int64_t bytes(MemoryKind kind) const;
  int64_t total_bytes() const;
  /// Bytes of host memory.
  int64_t host_bytes(MemoryKind kind) const;
  int64_t total_host_bytes() const { return host_end_; }
  /// Text with a line per kind and the total, then the same for host memory if there is any.
  std::string table() const;
  /// Text with a line per buffer, largest first, for --dry-run with --verbose.
  std::string buffers() const;

  /// Allocates all device buffers as one zeroed block and sets the slots' pointers. Call it once.
  DeviceBuffer allocate(const Context& context);
  /// Allocates all host buffers; the result is empty if there are none. UserError if a GPU's driver cannot
  /// page-lock the memory; without a GPU std::bad_alloc if there is too little.
  HostBuffer allocate_host(const Context& context);

  /// For tests, after allocate(): advances the timeline to `step`. Overwrites scratch whose lifetime begins or has
  /// ended with NaN, so that tests detect a use outside the lifetime.
  void begin_step(const Context& context, int step);

 private:
  struct Entry {
    Tensor* slot;
    std::string name;
    MemoryKind kind;
    int64_t bytes;
    int64_t offset;
    bool counted = true;  ///< false in parts of an overlay other than the largest
  };
  struct Alias {
    Tensor* slot;
    const Tensor* owner;
  };
  struct ScratchSlot {
    Tensor* slot;
    size_t buffer;  ///< index in scratch_
  };
  struct Request {
    Tensor like;
    Scratch scratch;
  };
  void add_scratch(PlanSlot slot, const std::string& name, const Scratch& scratch);
  void fill_slots(void* block, std::vector<ScratchBuffer> buffers);
  /// The scratch buffers with their offsets, which start at `end_`, and their total bytes.
  std::pair<std::vector<ScratchBuffer>, int64_t> packed() const;

  std::vector<Entry> entries_;
  std::vector<Entry> host_entries_;
  std::vector<Alias> aliases_;
  std::vector<ScratchBuffer> scratch_;
  std::vector<ScratchSlot> scratch_slots_;
  std::map<std::string, Request> scratch_requests_;  ///< by full name
  int64_t end_ = 0;                                  ///< end of entries_, in bytes
  int64_t host_end_ = 0;                             ///< end of host_entries_, in bytes
  void* block_ = nullptr;
  int step_ = -1;
};

/// "1.25 GiB", "340.0 MiB", "512 B".
std::string human_bytes(int64_t bytes);

}  // namespace te
