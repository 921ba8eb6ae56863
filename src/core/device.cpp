#include "core/device.h"

#include <omp.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <new>
#include <utility>

#include "core/device_backend.h"
#include "core/device_caps.h"
#include "core/host_memory.h"
#include "core/memory_bandwidth.h"
#include "core/profile.h"

namespace te {
namespace {

constexpr size_t kLibraryWorkspaceBytes = size_t{64} << 20;
constexpr size_t kCpuAlignment = 64;

/// Memory of a tracing device: a page takes memory only if code writes to it that does not ask its context.
void* reserve_address_space(size_t bytes) {
  if (bytes == 0) return nullptr;
  void* data =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    user_error("address space: {:.2f} GiB could not be reserved to trace a step; raise ulimit -v",
               double(bytes) / (1 << 30));
  }
  return data;
}

DeviceInfo cpu_info() {
  DeviceInfo info;
  info.name = "CPU";
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (line.rfind("model name", 0) == 0) {
      info.name = line.substr(line.find(':') + 2);
      break;
    }
  }
  const int64_t page = sysconf(_SC_PAGESIZE);
  info.memory_bytes = sysconf(_SC_PHYS_PAGES) * page;
  info.free_bytes = std::min(available_host_bytes(), info.memory_bytes);
  info.num_sms = omp_get_max_threads();
  return info;
}

}  // namespace

#ifdef TE_WITH_CUDA
int cuda_device_count() {
  return cuda_backend::device_count();
}
#else
int cuda_device_count() {
  return 0;
}
// Never called: a CPU build has no CUDA context. They keep the code below free of #ifdef.
namespace cuda_backend {
void* create_stream(int) {
  return nullptr;
}
void* create_side_stream(int, bool) {
  return nullptr;
}
void destroy_stream(void*) {}
void* create_event() {
  return nullptr;
}
void destroy_event(void*) {}
void record_event(void*, void*) {}
void wait_event(void*, void*) {}
bool event_done(void*) {
  return true;
}
DeviceInfo info(int) {
  return {};
}
int64_t memory_bandwidth(int) {
  return 0;
}
void synchronize(void*) {}
void* allocate(size_t) {
  return nullptr;
}
void release(void*) {}
void* allocate_host(size_t) {
  return nullptr;
}
void release_host(void*) {}
void copy(void*, const void*, size_t, void*) {}
void fill(void*, uint8_t, size_t, void*) {}
}  // namespace cuda_backend
#endif

Context Context::cpu(const ExecutionOptions& options) {
  Context context;
  context.options_ = options;
  return context;
}

Context Context::cuda(int ordinal, const ExecutionOptions& options) {
#ifndef TE_WITH_CUDA
  user_error(
      "device cuda: this te-train was built without CUDA; build with --preset cuda, or use device: cpu");
#endif
  if (const int count = cuda_device_count(); ordinal >= count) {
    user_error("device cuda:{}: {} CUDA device(s) usable here; use device: cpu or check the driver", ordinal,
               count);
  }
  Context context;
  context.device_ = DeviceKind::cuda;
  context.ordinal_ = ordinal;
  context.options_ = options;
  context.stream_ = cuda_backend::create_stream(ordinal);
  device_caps(context);  // refuses GPUs that te-train cannot use
  context.workspace_ = {cuda_backend::allocate(kLibraryWorkspaceBytes), DType::u8,
                        Shape{static_cast<int64_t>(kLibraryWorkspaceBytes)}};
  return context;
}

Context Context::trace(OpObserver& observer, const ExecutionOptions& options) {
  Context context;
  context.device_ = DeviceKind::trace;
  context.tracer_ = &observer;
  context.options_ = options;
  return context;
}

Context Context::side(bool urgent) const {
  Context context;
  context.tracer_ = tracer_;
  context.device_ = device_;
  context.ordinal_ = ordinal_;
  context.options_ = options_;
  if (is_cuda()) context.stream_ = cuda_backend::create_side_stream(ordinal_, urgent);
  return context;
}

Context::Context(Context&& other) noexcept
    : device_(other.device_),
      ordinal_(other.ordinal_),
      stream_(std::exchange(other.stream_, nullptr)),
      tracer_(other.tracer_),
      options_(other.options_),
      workspace_(std::exchange(other.workspace_, Tensor{})) {}

Context::~Context() {
  if (workspace_) cuda_backend::release(workspace_.data);
  if (stream_ != nullptr) cuda_backend::destroy_stream(stream_);
}

DeviceInfo Context::info() const {
  return is_cuda() ? cuda_backend::info(ordinal_) : cpu_info();
}

void Context::synchronize() const {
  if (is_cuda()) cuda_backend::synchronize(stream_);
}

// --- copies and fills ---------------------------------------------------------------------------------------------

namespace {

/// Reports an operation that moves `bytes` of device memory, and runs it unless the context only traces.
template <class Work>
void run_transfer(const Context& context, const char* name, double bytes, Work&& work) {
  if (bytes == 0) return;
  const ProfileScope scope(context, name, bytes);
  if (context.executes()) work();
}

}  // namespace

void Context::copy_to_device(const Tensor& destination, const void* host) const {
  const size_t bytes = destination.bytes();
  run_transfer(*this, "copy_to_device", static_cast<double>(bytes), [&] {
    if (is_cuda()) return cuda_backend::copy(destination.data, host, bytes, stream_);
    std::memcpy(destination.data, host, bytes);
  });
}

void Context::copy_to_host(void* host, const Tensor& source) const {
  const size_t bytes = source.bytes();
  run_transfer(*this, "copy_to_host", static_cast<double>(bytes), [&] {
    if (is_cuda()) return cuda_backend::copy(host, source.data, bytes, stream_);
    std::memcpy(host, source.data, bytes);
  });
}

void Context::copy(const Tensor& destination, const Tensor& source) const {
  const size_t bytes = source.bytes();
  TE_CHECK(destination.bytes() == bytes, "copy of {} bytes to {}", bytes, destination.bytes());
  run_transfer(*this, "copy", 2.0 * static_cast<double>(bytes), [&] {
    if (is_cuda()) return cuda_backend::copy(destination.data, source.data, bytes, stream_);
    std::memmove(destination.data, source.data, bytes);
  });
}

void Context::fill_bytes(const Tensor& tensor, uint8_t byte) const {
  const size_t bytes = tensor.bytes();
  run_transfer(*this, "fill", static_cast<double>(bytes), [&] {
    if (is_cuda()) return cuda_backend::fill(tensor.data, byte, bytes, stream_);
    std::memset(tensor.data, byte, bytes);
  });
}

// --- events and buffers -------------------------------------------------------------------------------------------

Event::Event(const Context& context) {
  if (context.is_cuda()) event_ = cuda_backend::create_event();
}

Event::~Event() {
  if (event_ != nullptr) cuda_backend::destroy_event(event_);
}

Event::Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}

Event& Event::operator=(Event&& other) noexcept {
  std::swap(event_, other.event_);
  return *this;
}

void Event::record(const Context& context) {
  if (event_ != nullptr) cuda_backend::record_event(event_, context.stream());
}

void Event::wait(const Context& context) const {
  if (event_ != nullptr) cuda_backend::wait_event(event_, context.stream());
}

bool Event::done() const {
  return event_ == nullptr || cuda_backend::event_done(event_);
}

namespace {

using Memory = std::unique_ptr<void, ReleaseMemory>;

Memory address_space(size_t bytes) {
  return Memory(reserve_address_space(bytes), {[](void* data, size_t size) { munmap(data, size); }, bytes});
}

Memory heap_memory(void* data, size_t bytes) {
  return Memory(data, {[](void* at, size_t) { std::free(at); }, bytes});
}

}  // namespace

DeviceBuffer::DeviceBuffer(const Context& context, size_t bytes) {
  if (bytes == 0) return;
  if (!context.executes()) {
    data_ = address_space(bytes);
  } else if (context.is_cuda()) {
    data_ =
        Memory(cuda_backend::allocate(bytes), {[](void* at, size_t) { cuda_backend::release(at); }, bytes});
  } else {
    const size_t padded = (bytes + kCpuAlignment - 1) / kCpuAlignment * kCpuAlignment;
    data_ = heap_memory(std::aligned_alloc(kCpuAlignment, padded), bytes);
    if (data_ == nullptr)
      user_error(
          "host memory: {:.2f} GiB could not be allocated; reduce the model or the batch, or use a larger "
          "host",
          double(bytes) / (1 << 30));
  }
}

HostBuffer::HostBuffer(const Context& context, size_t bytes) {
  if (!context.executes())
    data_ = address_space(bytes);
  else if (context.is_cuda())
    data_ = Memory(cuda_backend::allocate_host(bytes),
                   {[](void* at, size_t) { cuda_backend::release_host(at); }, bytes});
  else
    data_ = heap_memory(std::calloc(1, bytes), bytes);
  if (data_ == nullptr && bytes > 0) throw std::bad_alloc();
}

int64_t memory_bandwidth(const Context& context) {
  return context.is_cuda() ? cuda_backend::memory_bandwidth(context.ordinal()) : 0;
}

}  // namespace te
