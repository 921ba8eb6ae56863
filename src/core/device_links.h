// What joins two GPUs of one host.
#pragma once

#include <cstdint>
#include <string>

namespace te {

enum class LinkKind : uint8_t {
  unknown,      ///< neither the driver's library nor CUDA knows both GPUs
  nvlink,       ///< direct or through switches
  pcie,         ///< one GPU reads the other's memory over PCIe
  host_memory,  ///< PCIe, without access to each other's memory: copies go through the host's
};

struct DeviceLink {
  LinkKind kind = LinkKind::unknown;
  /// What the first GPU can send (and receive at the same time) at most: all its NVLinks together, or its PCIe slot; 0
  /// where unknown.
  double bytes_per_second = 0;
};

/// The link between the GPUs with these PCI addresses (DeviceInfo::bus_id), by NVML, which is a part of the driver and
/// also knows GPUs that CUDA_VISIBLE_DEVICES hides from this process; without it by CUDA, which knows no rates.
/// Unknown in a CPU build and for empty addresses.
DeviceLink link_between(const std::string& bus_id, const std::string& other_bus_id);

/// "NVLink", "PCIe", "PCIe through host memory", "unknown link".
const char* link_name(LinkKind kind);

}  // namespace te
