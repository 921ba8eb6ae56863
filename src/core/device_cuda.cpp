// CUDA implementation of device.h.
#include <cuda_runtime.h>

#include <map>
#include <mutex>

#include "core/cublaslt.h"
#include "core/cuda_check.h"
#include "core/device_backend.h"
#include "core/host_pages.h"

namespace te::cuda_backend {
namespace {

/// Host memory that this file, not CUDA, has mapped and page-locked.
struct LockedPages {
  std::mutex mutex;
  std::map<void*, size_t> bytes;
};

LockedPages& locked_pages() {
  static LockedPages pages;
  return pages;
}

// For large buffers: all threads fault the pages in, then CUDA locks them. Null if that fails.
void* lock_mapped_pages(size_t bytes) {
  void* const data = map_host_pages(bytes);
  if (data == nullptr) return nullptr;
  if (cudaHostRegister(data, bytes, cudaHostRegisterDefault) != cudaSuccess) {
    cudaGetLastError();
    unmap_host_pages(data, bytes);
    return nullptr;
  }
  const std::lock_guard lock(locked_pages().mutex);
  locked_pages().bytes[data] = bytes;
  return data;
}

}  // namespace

int device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();  // no driver or no card: not an error here, so clear it for later checks
    return 0;
  }
  return count;
}

void* create_stream(int ordinal) {
  cublaslt();  // every GPU needs it; cuDNN, which needs it sometimes, finds it by its name
  TE_CUDA_CHECK(cudaSetDevice(ordinal));
  cudaStream_t stream = nullptr;
  TE_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

void* create_side_stream(int ordinal, bool urgent) {
  TE_CUDA_CHECK(cudaSetDevice(ordinal));
  int least = 0, greatest = 0;  // greatest is the smaller number
  TE_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  cudaStream_t stream = nullptr;
  TE_CUDA_CHECK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, urgent ? greatest : least));
  return stream;
}

void* create_event() {
  cudaEvent_t event = nullptr;
  TE_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return event;
}

void destroy_event(void* event) {
  cudaEventDestroy(static_cast<cudaEvent_t>(event));
}

void record_event(void* event, void* stream) {
  TE_CUDA_CHECK(cudaEventRecord(static_cast<cudaEvent_t>(event), static_cast<cudaStream_t>(stream)));
}

void wait_event(void* event, void* stream) {
  TE_CUDA_CHECK(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), static_cast<cudaEvent_t>(event), 0));
}

bool event_done(void* event) {
  const cudaError_t status = cudaEventQuery(static_cast<cudaEvent_t>(event));
  if (status == cudaErrorNotReady) {
    cudaGetLastError();  // "not yet" is not an error: clear it for later checks
    return false;
  }
  TE_CUDA_CHECK(status);
  return true;
}

void destroy_stream(void* stream) {
  cudaStreamDestroy(static_cast<cudaStream_t>(stream));
}

DeviceInfo info(int ordinal) {
  cudaDeviceProp properties{};
  TE_CUDA_CHECK(cudaGetDeviceProperties(&properties, ordinal));
  DeviceInfo info;
  info.name = properties.name;
  char bus_id[32] = "";
  TE_CUDA_CHECK(cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id), ordinal));
  info.bus_id = bus_id;
  info.num_sms = properties.multiProcessorCount;
  info.capability_major = properties.major;
  info.capability_minor = properties.minor;
  info.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  int current = 0;
  TE_CUDA_CHECK(cudaGetDevice(&current));
  TE_CUDA_CHECK(cudaSetDevice(ordinal));
  size_t free_bytes = 0, total = 0;
  TE_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total));
  TE_CUDA_CHECK(cudaSetDevice(current));
  info.free_bytes = static_cast<int64_t>(free_bytes);
  return info;
}

int64_t memory_bandwidth(int ordinal) {
  int kilohertz = 0, bits = 0;
  TE_CUDA_CHECK(cudaDeviceGetAttribute(&kilohertz, cudaDevAttrMemoryClockRate, ordinal));
  TE_CUDA_CHECK(cudaDeviceGetAttribute(&bits, cudaDevAttrGlobalMemoryBusWidth, ordinal));
  return int64_t{2} * kilohertz * 1000 * bits / 8;  // double data rate: two bits per line and cycle
}

void synchronize(void* stream) {
  TE_CUDA_CHECK(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)));
}

void* allocate(size_t bytes) {
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, bytes);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    size_t free_bytes = 0, total = 0;
    cudaMemGetInfo(&free_bytes, &total);
    user_error(
        "GPU memory: cannot allocate {:.2f} GiB, {:.2f} of {:.2f} GiB are free; lower "
        "training.micro_batch_size, set training.recompute, or see the memory plan of --dry-run",
        double(bytes) / (1 << 30), double(free_bytes) / (1 << 30), double(total) / (1 << 30));
  }
  TE_CUDA_CHECK(status);
  return data;
}

void release(void* data) {
  cudaFree(data);
}

void* allocate_host(size_t bytes) {
  void* data = bytes >= kManyHostBytes ? lock_mapped_pages(bytes) : nullptr;
  if (data != nullptr) return data;
  const cudaError_t status = cudaHostAlloc(&data, bytes, cudaHostAllocDefault);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // clear the status: the caller may try less memory
    user_error("host memory: {:.2f} GiB could not be page-locked; free host memory",
               double(bytes) / (1 << 30));
  }
  TE_CUDA_CHECK(status);
  return data;
}

void release_host(void* data) {
  size_t bytes = 0;
  {
    const std::lock_guard lock(locked_pages().mutex);
    if (const auto found = locked_pages().bytes.extract(data)) bytes = found.mapped();
  }
  if (bytes == 0) {
    cudaFreeHost(data);
    return;
  }
  cudaHostUnregister(data);
  unmap_host_pages(data, bytes);
}

void copy(void* destination, const void* source, size_t bytes, void* stream) {
  TE_CUDA_CHECK(
      cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDefault, static_cast<cudaStream_t>(stream)));
}

void fill(void* data, uint8_t byte, size_t bytes, void* stream) {
  TE_CUDA_CHECK(cudaMemsetAsync(data, byte, bytes, static_cast<cudaStream_t>(stream)));
}

}  // namespace te::cuda_backend
