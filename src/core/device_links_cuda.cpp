// Links between GPUs, from NVML, the driver's management library. It is loaded at run time: the CUDA wheels do not have
// its header, and a machine without a driver does not have the library. The declarations below are from NVML's stable C
// interface (docs.nvidia.com/deploy/nvml-api).
#include <cuda_runtime.h>
#include <dlfcn.h>

#include "core/device_backend.h"

namespace te::cuda_backend {
namespace {

constexpr int kNvmlSuccess = 0;
constexpr int kCapsRead = 0, kCapsNvlink = 2;   // nvmlGpuP2PCapsIndex_t
constexpr int kP2pOk = 0;                       // nvmlGpuP2PStatus_t
constexpr unsigned kMaxNvlinks = 18;            // of a Hopper GPU
constexpr double kNvlinkBytesPerSecond = 25e9;  // of an NVLink 4 in each direction: 18 make 450 GB/s
constexpr double kPcie3LaneBytesPerSecond = 8e9 * 128 / 130 / 8;  // doubles with each generation

using NvmlDevice = void*;

/// NVML's functions, loaded once; usable() is false without a driver.
class Nvml {
 public:
  static const Nvml& instance() {
    static const Nvml nvml;
    return nvml;
  }
  bool usable() const { return usable_; }
  /// Null for an unknown GPU.
  NvmlDevice device(const std::string& bus_id) const {
    NvmlDevice found = nullptr;
    return device_(bus_id.c_str(), &found) == kNvmlSuccess ? found : nullptr;
  }
  bool can(NvmlDevice a, NvmlDevice b, int capability) const {
    int status = -1;
    return p2p_(a, b, capability, &status) == kNvmlSuccess && status == kP2pOk;
  }
  int active_nvlinks(NvmlDevice device) const {
    int count = 0;
    for (unsigned link = 0; link < kMaxNvlinks; ++link) {
      int active = 0;
      if (nvlink_(device, link, &active) == kNvmlSuccess && active == 1) ++count;
    }
    return count;
  }
  double pcie_bytes_per_second(NvmlDevice device) const {
    unsigned generation = 0, width = 0;
    const bool known = pcie_generation_(device, &generation) == kNvmlSuccess &&
                       pcie_width_(device, &width) == kNvmlSuccess && generation >= 3 && generation <= 6;
    return known ? kPcie3LaneBytesPerSecond * static_cast<double>(1U << (generation - 3)) * width : 0.0;
  }

 private:
  Nvml() {
    void* const library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
    int (*init)() = nullptr;
    usable_ =
        load(library, "nvmlInit_v2", init) && load(library, "nvmlDeviceGetHandleByPciBusId_v2", device_) &&
        load(library, "nvmlDeviceGetP2PStatus", p2p_) && load(library, "nvmlDeviceGetNvLinkState", nvlink_) &&
        load(library, "nvmlDeviceGetMaxPcieLinkGeneration", pcie_generation_) &&
        load(library, "nvmlDeviceGetMaxPcieLinkWidth", pcie_width_) && init() == kNvmlSuccess;
  }
  template <class Function>
  static bool load(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(::dlsym(library, name));
    return function != nullptr;
  }

  bool usable_ = false;
  int (*device_)(const char* bus_id, NvmlDevice* device) = nullptr;
  int (*p2p_)(NvmlDevice a, NvmlDevice b, int capability, int* status) = nullptr;
  int (*nvlink_)(NvmlDevice device, unsigned link, int* active) = nullptr;
  int (*pcie_generation_)(NvmlDevice device, unsigned* generation) = nullptr;
  int (*pcie_width_)(NvmlDevice device, unsigned* width) = nullptr;
};

/// CUDA does not report the link's kind; it is NVLink if the GPUs have native peer atomics.
DeviceLink by_cuda(const std::string& bus_id, const std::string& other_bus_id) {
  int a = 0, b = 0, atomics = 0, access = 0;
  const bool known =
      cudaDeviceGetByPCIBusId(&a, bus_id.c_str()) == cudaSuccess &&
      cudaDeviceGetByPCIBusId(&b, other_bus_id.c_str()) == cudaSuccess && a != b &&
      cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, a, b) == cudaSuccess &&
      cudaDeviceCanAccessPeer(&access, a, b) == cudaSuccess;
  if (!known) {
    cudaGetLastError();  // an invisible GPU is not an error: clear the status for later checks
    return {};
  }
  if (access == 0) return {LinkKind::host_memory, 0};
  return {atomics != 0 ? LinkKind::nvlink : LinkKind::pcie, 0};
}

}  // namespace

DeviceLink link_between(const std::string& bus_id, const std::string& other_bus_id) {
  const Nvml& nvml = Nvml::instance();
  if (!nvml.usable()) return by_cuda(bus_id, other_bus_id);
  const NvmlDevice a = nvml.device(bus_id), b = nvml.device(other_bus_id);
  if (a == nullptr || b == nullptr) return by_cuda(bus_id, other_bus_id);
  if (nvml.can(a, b, kCapsNvlink)) return {LinkKind::nvlink, kNvlinkBytesPerSecond * nvml.active_nvlinks(a)};
  return {nvml.can(a, b, kCapsRead) ? LinkKind::pcie : LinkKind::host_memory, nvml.pcie_bytes_per_second(a)};
}

}  // namespace te::cuda_backend
