// Device, CUDA stream and memory. A process uses one device. A Context has the device and the CUDA stream on which the
// work of a training step is launched in order. On the CPU every call is synchronous.
//
// A tracing device executes nothing: each operation is reported to an observer instead (core/profile.h), to plan a step
// on any machine. Its memory is address space that reads as zeros.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/choices.h"
#include "core/tensor.h"

namespace te {

class OpObserver;

enum class DeviceKind : uint8_t { cpu, cuda, trace };

struct DeviceInfo {
  std::string name;          ///< "NVIDIA H200", or the CPU's model name
  std::string bus_id;        ///< PCI address, unique on a host; empty on the CPU
  int64_t memory_bytes = 0;  ///< total
  int64_t free_bytes = 0;    ///< free now; of host memory as available_host_bytes() counts
  int num_sms = 0;           ///< SMs of a GPU; threads on the CPU
  int capability_major = 0;  ///< CUDA compute capability; 0 on the CPU
  int capability_minor = 0;
};

/// Number of usable CUDA devices: 0 in a CPU build, without a driver, or without a GPU.
int cuda_device_count();

/// Choices between implementations on a GPU; the CPU has only one.
struct ExecutionOptions {
  GemmAutotune gemm_autotune = GemmAutotune::on;
  /// For backward passes of attention in cuDNN (kernels/attention/attention.h): true for the deterministic algorithm,
  /// which may need a workspace of batch * heads * seq * seq BF16 values; false for the one that accumulates dq with
  /// atomics.
  bool deterministic_attention = true;
  /// For GEMMs of FP32 matrices: true for tensor cores with inputs rounded to TF32 (10 mantissa bits), false for FP32.
  bool tf32 = false;
  bool operator==(const ExecutionOptions&) const = default;
};

class Context {
 public:
  static Context cpu(const ExecutionOptions& options = {});
  /// UserError if the build has no CUDA, the device does not exist, or te-train cannot use it (core/device_caps.h).
  static Context cuda(int ordinal, const ExecutionOptions& options = {});
  /// A device on which operations are not executed but reported to `observer`, which must outlive it. It answers
  /// queries, such as workspace sizes, like the CPU.
  static Context trace(OpObserver& observer, const ExecutionOptions& options = {});
  ~Context();
  Context(Context&& other) noexcept;
  Context& operator=(Context&&) = delete;
  Context(const Context&) = delete;

  DeviceKind device() const { return device_; }
  bool is_cuda() const { return device_ == DeviceKind::cuda; }
  /// False if operations are only reported to tracer().
  bool executes() const { return device_ != DeviceKind::trace; }
  OpObserver* tracer() const { return tracer_; }  ///< null unless the context traces
  int ordinal() const { return ordinal_; }
  /// cudaStream_t as an opaque pointer; null on the CPU.
  void* stream() const { return stream_; }
  /// Workspace of the GEMM library, 64 MiB on a GPU; empty on the CPU. Used only on stream().
  Tensor gemm_workspace() const { return workspace_; }
  DeviceInfo info() const;
  /// The options from construction; side() contexts have the same.
  const ExecutionOptions& options() const { return options_; }

  /// Another context of this device with a separate CUDA stream, for concurrent work (communication, weight gradients).
  /// `urgent` gives the CUDA stream the highest priority. The context has no gemm_workspace. Use an Event to order work
  /// of the two contexts. On the CPU it is another CPU context.
  Context side(bool urgent = false) const;

  /// Waits for all work on stream().
  void synchronize() const;
  /// Asynchronous on a GPU: the host buffer must exist (and should be pinned) until the copy is complete.
  void copy_to_device(const Tensor& destination, const void* host) const;
  void copy_to_host(void* host, const Tensor& source) const;
  void copy(const Tensor& destination, const Tensor& source) const;
  /// Sets every byte.
  void fill_bytes(const Tensor& tensor, uint8_t byte) const;
  void zero(const Tensor& tensor) const { fill_bytes(tensor, 0); }

 private:
  Context() = default;
  DeviceKind device_ = DeviceKind::cpu;
  int ordinal_ = 0;
  void* stream_ = nullptr;
  OpObserver* tracer_ = nullptr;
  ExecutionOptions options_;
  Tensor workspace_;
};

/// A point in a context's work. No-op on the CPU, where all calls are synchronous.
class Event {
 public:
  explicit Event(const Context& context);
  ~Event();
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;

  /// Sets the point after all work launched on the context so far; may be called repeatedly.
  void record(const Context& context);
  /// Makes later work on the context wait for the recorded point. The host does not wait.
  void wait(const Context& context) const;
  /// True if the device has passed the recorded point, or if none was recorded.
  bool done() const;

 private:
  void* event_ = nullptr;  // cudaEvent_t; null on the CPU
};

/// How memory is released.
struct ReleaseMemory {
  void (*release)(void* data, size_t bytes) = nullptr;
  size_t bytes = 0;
  void operator()(void* data) const { release(data, bytes); }
};

/// Owns device memory (64-byte aligned on the CPU, 256 on a GPU), or address space of a tracing device. UserError if
/// there is not enough.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(const Context& context, size_t bytes);

  void* data() const { return data_.get(); }
  size_t bytes() const { return data_.get_deleter().bytes; }

 private:
  std::unique_ptr<void, ReleaseMemory> data_;
};

/// Owns host memory, page-locked if the context's device is a GPU.
class HostBuffer {
 public:
  HostBuffer() = default;
  HostBuffer(const Context& context, size_t bytes);

  template <class T>
  T* as() const {
    return static_cast<T*>(data_.get());
  }
  size_t bytes() const { return data_.get_deleter().bytes; }

 private:
  std::unique_ptr<void, ReleaseMemory> data_;
};

}  // namespace te
