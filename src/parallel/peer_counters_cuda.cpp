#include <cudaTypedefs.h>

#include "core/cuda_check.h"
#include "parallel/cuda_driver.h"
#include "parallel/peer_counters.h"

namespace te::parallel {
namespace {

constexpr size_t kCounterBytes = 128;
constexpr size_t kPageBytes = size_t{2} << 20;  // a complete page of the driver, which can be shared
static_assert(PeerCounters::kMax * kCounterBytes <= kPageBytes);

}  // namespace

PeerCounters::PeerCounters(World& world, const Context& context, const Communicator& group,
                           const std::string& key)
    : group_(group) {
  check_peer_access(world, context, group, key);
  own_ = DeviceBuffer(context, kPageBytes);
  context.zero({own_.data(), DType::u8, {static_cast<int64_t>(kPageBytes)}});
  pages_ = std::make_unique<PeerMemory>(world, context, group, own_.data(), kPageBytes, "counters", key);
}

uint32_t* PeerCounters::counter(int rank, size_t index) const {
  TE_CHECK(index < kMax, "group {}: counter {} of {}", group_.name(), index, kMax);
  return reinterpret_cast<uint32_t*>(pages_->at(rank) + index * kCounterBytes);
}

// The driver executes a system-wide memory fence before the write.
void PeerCounters::write_counter(const Context& stream, int rank, size_t index, uint32_t value) const {
  static const auto function = driver_function<PFN_cuStreamWriteValue32_v11070>("cuStreamWriteValue32");
  driver_check(function(cuda_stream(stream), reinterpret_cast<CUdeviceptr>(counter(rank, index)), value,
                        CU_STREAM_WRITE_VALUE_DEFAULT),
               "cuStreamWriteValue32");
}

void PeerCounters::wait_for(const Context& stream, size_t index, uint32_t value) const {
  static const auto function = driver_function<PFN_cuStreamWaitValue32_v11070>("cuStreamWaitValue32");
  driver_check(function(cuda_stream(stream), reinterpret_cast<CUdeviceptr>(counter(group_.rank(), index)),
                        value, CU_STREAM_WAIT_VALUE_GEQ),
               "cuStreamWaitValue32");
}

void copy_bytes(const Context& stream, void* destination, const void* source, size_t bytes) {
  TE_CUDA_CHECK(cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDefault, cuda_stream(stream)));
}

}  // namespace te::parallel
