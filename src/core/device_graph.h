// Work that a GPU does again and again, recorded once and launched as a whole (a CUDA graph): the host hands over one
// item instead of hundreds of kernels, which matters where kernels take microseconds.
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
  /// memory only) and fills at the addresses they have now; what these hold is read at each launch. `work` must not
  /// wait for the device, allocate its memory, or do for the first time what needs that (a GEMM that is not tuned yet).
  void record(const Context& context, const std::function<void()>& work);
  bool recorded() const { return graph_ != nullptr; }
  /// Enqueues the recorded work on context.stream().
  void launch(const Context& context) const;

  /// True where graphs exist: on a GPU.
  static bool supported(const Context& context) { return context.is_cuda(); }

 private:
  void* graph_ = nullptr;  // cudaGraphExec_t
};

}  // namespace te
