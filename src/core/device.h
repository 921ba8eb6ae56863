// Device, stream and raw memory. A process drives one device; a Context names it and carries the stream on
// which all work of the training step is launched, in order. On the CPU every call completes before it
// returns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/tensor.h"

namespace te {

enum class DeviceKind : uint8_t { cpu, cuda };

struct DeviceInfo {
  std::string name;          ///< "NVIDIA H200", or the CPU's model name
  std::string bus_id;        ///< PCI address, unique on a host; empty on the CPU
  int64_t memory_bytes = 0;  ///< total
  int64_t free_bytes = 0;    ///< free now
  int num_sms = 0;           ///< or threads on the CPU
  int capability_major = 0;  ///< CUDA compute capability; 0 on the CPU
  int capability_minor = 0;
};

/// Usable CUDA devices: 0 in a CPU build, without a driver, or without a card.
int cuda_device_count();

/// On a GPU: how the algorithm of a GEMM is chosen at its first use (kernels/gemm/gemm.h). Choices that were
/// timed are kept in a file and taken by later processes, which then compute the same bits.
enum class GemmAutotune : uint8_t {
  off,     ///< the first one that cuBLASLt proposes
  cached,  ///< that of the file; the first proposal for what it does not hold
  on,      ///< that of the file; what it does not hold is timed, for a few seconds a process at most
  full,    ///< all candidates, each long enough to meet the card's power limit; replaces what `on` chose
};

/// What kernels are to choose where a GPU has several ways; the CPU has one.
struct ExecutionOptions {
  GemmAutotune gemm_autotune = GemmAutotune::on;
  /// A backward pass of attention that is left to cuDNN (kernels/attention/attention.h): its
  /// deterministic algorithm, which holds batch * heads * seq * seq BF16 values as workspace where cuDNN has no other,
  /// or the one that adds dq with atomics.
  bool deterministic_attention = true;
  /// GEMMs of FP32 matrices: tensor cores multiply values rounded to TF32 (10 bits of mantissa); else all in FP32.
  bool tf32 = false;
  /// GEMMs of FP8 matrices with scales of 128 values: 0: cuBLASLt's; n: the n-th of te-train's own
  /// (kernels/gemm/block_scaled.h) for what it can do, cuBLASLt's for the rest; -1: the kernel that gemm_autotune finds
  /// fastest.
  int block_scaled_gemm = -1;
  bool operator==(const ExecutionOptions&) const = default;
};

class Context {
 public:
  static Context cpu(const ExecutionOptions& options = {});
  /// UserError when the build has no CUDA, no such device exists, or it is older than Hopper (compute
  /// capability 9.0).
  static Context cuda(int ordinal, const ExecutionOptions& options = {});
  ~Context();
  Context(Context&& other) noexcept;
  Context& operator=(Context&&) = delete;
  Context(const Context&) = delete;

  DeviceKind device() const { return device_; }
  bool is_cuda() const { return device_ == DeviceKind::cuda; }
  int ordinal() const { return ordinal_; }
  /// cudaStream_t as an opaque pointer; null on the CPU.
  void* stream() const { return stream_; }
  /// Scratch of the GEMM library, 64 MiB on a GPU; empty on the CPU. Used only on stream().
  Tensor gemm_workspace() const { return workspace_; }
  DeviceInfo info() const;
  /// As given when the context was made; those of side() are the same.
  const ExecutionOptions& options() const { return options_; }

  /// Another context of this device with a stream of its own, for work beside this one's (communication, weight
  /// gradients); urgent: the device starts its kernels first. It has no gemm_workspace. Order between
  /// the two is made with an Event. On the CPU simply another CPU context.
  Context side(bool urgent = false) const;

  /// Waits for all work on stream().
  void synchronize() const;
  /// Asynchronous on a GPU: the host buffer must stay alive (and should be pinned) until the stream has
  /// passed it.
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
  ExecutionOptions options_;
  Tensor workspace_;
};

/// A point in a context's work. No-op on the CPU, where all work is done when its call returns.
class Event {
 public:
  explicit Event(const Context& context);
  ~Event();
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;

  /// The point after all work launched on the context so far; may be called again and again.
  void record(const Context& context);
  /// Work launched on the context from now on starts after the recorded point. The host does not wait.
  void wait(const Context& context) const;
  /// The device has passed the recorded point (true if none was recorded).
  bool done() const;

 private:
  void* event_ = nullptr;  // cudaEvent_t; null on the CPU
};

/// Owns bytes of device memory (64-byte aligned on the CPU, 256 on a GPU). UserError when the device has not
/// enough.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(const Context& context, size_t bytes);
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
  DeviceKind device_ = DeviceKind::cpu;
};

/// Owns page-locked host memory on a GPU build with a device, plain memory otherwise.
class HostBuffer {
 public:
  HostBuffer() = default;
  HostBuffer(const Context& context, size_t bytes);
  ~HostBuffer();
  HostBuffer(HostBuffer&& other) noexcept;
  HostBuffer& operator=(HostBuffer&& other) noexcept;

  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
  DeviceKind device_ = DeviceKind::cpu;
};

}  // namespace te
