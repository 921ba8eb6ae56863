#include "parallel/peer_memory.h"

#include <cuda.h>
#include <cudaTypedefs.h>

#include <cstring>
#include <exception>
#include <functional>
#include <sstream>

#include "core/cuda_check.h"
#include "parallel/cuda_driver.h"
#include "parallel/operation.h"
#include "parallel/world.h"

namespace te::parallel {
namespace {

std::string remedy(const std::string& key) {
  return "set " + key + " to nccl";
}

/// Description of a rank's memory for the other ranks.
struct Offer {
  cudaIpcMemHandle_t handle;  ///< handle of the allocation
  uint64_t offset;            ///< offset of the memory in the allocation
  uint64_t bytes;
  uint64_t layout;  ///< hash of the layout's description
};

std::string text_of(const Offer& offer) {
  return {reinterpret_cast<const char*>(&offer), sizeof(Offer)};
}

Offer offer_of(const std::string& text) {
  Offer offer{};
  TE_CHECK(text.size() == sizeof(Offer), "description of peer memory with {} bytes", text.size());
  std::memcpy(&offer, text.data(), sizeof(Offer));
  return offer;
}

Offer make_offer(void* memory, size_t bytes, const std::string& layout, const std::string& key) {
  static const auto range = driver_function<PFN_cuMemGetAddressRange_v3020>("cuMemGetAddressRange");
  CUdeviceptr base = 0;
  size_t size = 0;
  driver_check(range(&base, &size, reinterpret_cast<CUdeviceptr>(memory)), "cuMemGetAddressRange");
  Offer offer{};
  offer.offset = reinterpret_cast<CUdeviceptr>(memory) - base;
  offer.bytes = bytes;
  offer.layout = std::hash<std::string>{}(layout);
  const cudaError_t status =
      cudaIpcGetMemHandle(&offer.handle, reinterpret_cast<void*>(base));  // NOLINT(performance-no-int-to-ptr)
  if (status == cudaSuccess) return offer;
  cudaGetLastError();
  user_error("{} copy: CUDA cannot share this GPU's memory with other processes ({}); {}", key,
             cudaGetErrorString(status), remedy(key));
}

}  // namespace

void check_peer_access(World& world, const Context& context, const Communicator& group,
                       const std::string& key) {
  const std::vector<std::string> places = world.gather_strings(
      fmt::format("{}\n{}", world.first_local(), context.info().bus_id), group.world_ranks());
  world.run_collectively([&] {
    for (int peer = 0; peer < group.size(); ++peer) {
      if (peer == group.rank()) continue;
      std::istringstream lines(places[static_cast<size_t>(peer)]);
      int first_local = 0, other = 0, access = 0;
      std::string bus_id;
      lines >> first_local >> bus_id;
      const int own_rank = group.world_ranks()[static_cast<size_t>(group.rank())],
                peer_rank = group.world_ranks()[static_cast<size_t>(peer)];
      if (first_local != world.first_local()) {
        user_error(
            "{} copy: ranks {} of a {} group are on several hosts, but copies work only inside one host; {}, "
            "or use groups whose size divides the number of ranks of a host",
            key, list_ranks(group.world_ranks()), group.name(), remedy(key));
      }
      if (cudaDeviceGetByPCIBusId(&other, bus_id.c_str()) != cudaSuccess) {
        cudaGetLastError();
        user_error(
            "{} copy: GPU {} of rank {} is not visible to rank {}; set CUDA_VISIBLE_DEVICES so that all GPUs "
            "of the {} group are visible to its ranks, or {}",
            key, bus_id, peer_rank, own_rank, group.name(), remedy(key));
      }
      if (other == context.ordinal()) continue;  // ranks share the GPU (launch.h)
      if (cudaDeviceCanAccessPeer(&access, context.ordinal(), other) != cudaSuccess || access == 0) {
        cudaGetLastError();
        user_error("{} copy: the GPU of rank {} cannot access the memory of rank {}'s GPU; {}", key, own_rank,
                   peer_rank, remedy(key));
      }
    }
  });
}

PeerMemory::PeerMemory(World& world, const Context& context, const Communicator& group, void* memory,
                       size_t bytes, const std::string& layout, const std::string& key)
    : world_(world),
      context_(context),
      group_(group),
      key_(key),
      bytes_(bytes),
      exceptions_(std::uncaught_exceptions()) {
  views_.assign(static_cast<size_t>(group.size()), nullptr);
  views_[static_cast<size_t>(group.rank())] = static_cast<char*>(memory);
  context.synchronize();  // completes earlier writes to the memory before other ranks read it
  std::string own_offer;
  world.run_collectively([&] { own_offer = text_of(make_offer(memory, bytes, layout, key_)); });
  const std::vector<std::string> offers = world.gather_strings(own_offer, group.world_ranks());
  world.run_collectively([&] { open(offers, own_offer); });
  check_views();
}

void PeerMemory::open(const std::vector<std::string>& offers, const std::string& own_offer) {
  const Offer own = offer_of(own_offer);
  for (int peer = 0; peer < group_.size(); ++peer) {
    if (peer == group_.rank()) continue;
    const Offer offer = offer_of(offers[static_cast<size_t>(peer)]);
    const int peer_rank = group_.world_ranks()[static_cast<size_t>(peer)];
    if (offer.bytes != own.bytes || offer.layout != own.layout) {
      user_error(
          "{} copy: the memory of rank {} has a different layout than this rank's ({} and {} bytes); {}",
          key_, peer_rank, offer.bytes, own.bytes, remedy(key_));
    }
    void* base = nullptr;
    const cudaError_t status = cudaIpcOpenMemHandle(&base, offer.handle, cudaIpcMemLazyEnablePeerAccess);
    if (status != cudaSuccess) {
      cudaGetLastError();
      user_error("{} copy: CUDA cannot open the memory of rank {}'s GPU ({}); {}", key_, peer_rank,
                 cudaGetErrorString(status), remedy(key_));
    }
    opened_.push_back(base);
    views_[static_cast<size_t>(peer)] = static_cast<char*>(base) + offer.offset;
  }
}

/// Each rank writes a distinct word to the beginning of its memory and checks that it can read the other ranks' words.
void PeerMemory::check_views() {
  constexpr uint64_t kMark = 0x7465747261696e00;
  const auto copy = [](void* to, const void* from) {
    TE_CUDA_CHECK(cudaMemcpy(to, from, sizeof(uint64_t), cudaMemcpyDefault));
  };
  uint64_t kept = 0;
  const uint64_t mark = kMark + static_cast<uint64_t>(group_.rank());
  copy(&kept, own());
  copy(own(), &mark);
  TE_CUDA_CHECK(cudaDeviceSynchronize());
  world_.barrier(group_.world_ranks());
  world_.run_collectively([&] {
    for (int peer = 0; peer < group_.size(); ++peer) {
      uint64_t found = 0;
      copy(&found, at(peer));
      if (found != kMark + static_cast<uint64_t>(peer))
        user_error("{} copy: CUDA opened wrong memory for rank {}; {}", key_,
                   group_.world_ranks()[static_cast<size_t>(peer)], remedy(key_));
    }
  });
  copy(own(), &kept);
  TE_CUDA_CHECK(cudaDeviceSynchronize());
  world_.barrier(group_.world_ranks());  // other ranks may write to the memory only after it is restored
}

PeerMemory::~PeerMemory() {
  if (std::uncaught_exceptions() > exceptions_) return;
  context_.synchronize();
  for (void* base : opened_) cudaIpcCloseMemHandle(base);
  world_.barrier(group_.world_ranks());
}

}  // namespace te::parallel
