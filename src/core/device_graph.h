// CUDA graph: GPU work that is recorded once and launched repeatedly. One launch replaces hundreds, which matters if
// kernels take microseconds.
#pragma once

#include <functional>

#include "core/device.h"

namespace te {

class DeviceGraph {
 public:
  DeviceGraph() = default;
  ~DeviceGraph();
  DeviceGraph(DeviceGraph&& other) noexcept;
  DeviceGraph& operator=(DeviceGraph&& other) noexcept;

  /// Calls `work` and records what it launches on context.stream() instead of running it: kernels, copies (pinned host
  /// memory only) and fills. Addresses are fixed at recording; memory contents are read at each launch. `work` must not
  /// wait for the device or allocate device memory, also not indirectly (the first call of an untuned GEMM does).
  void record(const Context& context, const std::function<void()>& work);
  bool recorded() const { return graph_ != nullptr; }
  /// Enqueues the recorded work on context.stream().
  void launch(const Context& context) const;

  /// True on a GPU.
  static bool supported(const Context& context) { return context.is_cuda(); }

 private:
  void* graph_ = nullptr;  // cudaGraphExec_t
};

}  // namespace te
