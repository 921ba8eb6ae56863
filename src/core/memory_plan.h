// Plan, then run. Components name every buffer they will need before the first step; the plan is a table that
// --dry-run prints and the arena allocates in one piece. Nothing allocates device memory after that.
//
// A component passes the Tensor member that shall point at the memory: plan.add(slot, ...) fills dtype and
// shape at once and allocate() fills the pointer, so a slot must not move in between (components that plan
// are not copied or moved).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/device.h"
#include "core/tensor.h"

namespace te {

/// What a buffer is for: the rows of the memory table shown at start-up.
enum class MemoryKind : uint8_t {
  parameters,
  fp8_weights,
  main_params,
  main_grads,
  optimizer,
  activations,
  scratch,
  fp8_state,
  data
};
constexpr int kMemoryKinds = 9;
std::string_view memory_kind_name(MemoryKind kind);

class MemoryPlan {
 public:
  MemoryPlan() = default;
  MemoryPlan(const MemoryPlan&) = delete;

  /// Asks for a buffer of `shape` for `slot`. `name` is for messages and tables ("layers.0.fc1.out").
  void add(Tensor& slot, std::string name, MemoryKind kind, DType dtype, Shape shape);
  /// Makes `slot` share the memory of `owner`, a slot already added, under another dtype or shape of at most
  /// its bytes: for scratch whose uses do not overlap in time.
  void alias(Tensor& slot, const Tensor& owner, DType dtype, Shape shape);

  int64_t bytes(MemoryKind kind) const;
  int64_t total_bytes() const;
  /// A line per kind and the total, for people.
  std::string table() const;
  /// A line per buffer, largest first: what --dry-run shows with --verbose.
  std::string buffers() const;

  /// Allocates everything as one block, zeroed, and fills all slots. Call once.
  DeviceBuffer allocate(const Context& context);

 private:
  struct Entry {
    Tensor* slot;
    std::string name;
    MemoryKind kind;
    int64_t bytes;
    int64_t offset;
  };
  struct Alias {
    Tensor* slot;
    const Tensor* owner;
  };
  std::vector<Entry> entries_;
  std::vector<Alias> aliases_;
  int64_t end_ = 0;
};

/// "1.25 GiB", "340.0 MiB", "512 B".
std::string human_bytes(int64_t bytes);

}  // namespace te
