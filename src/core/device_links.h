// Links between GPUs of one host.
#pragma once

#include <cstdint>
#include <string>

#include "core/choices.h"

namespace te {

enum class LinkKind : uint8_t {
  unknown,      ///< neither NVML nor CUDA knows both GPUs
  nvlink,       ///< direct or through switches
  pcie,         ///< one GPU reads the other's memory over PCIe
  host_memory,  ///< PCIe without peer access: copies go through host memory
};
TE_NAMES(LinkKind, "unknown link", "NVLink", "PCIe", "PCIe through host memory")

struct DeviceLink {
  LinkKind kind = LinkKind::unknown;
  /// Peak rate in each direction of the first GPU: all its NVLinks together, or its PCIe slot; 0 if unknown.
  double bytes_per_second = 0;
};

/// The link between the GPUs with these PCI addresses (DeviceInfo::bus_id). The source is NVML, which is part of the
/// driver and also knows GPUs that CUDA_VISIBLE_DEVICES hides from this process. Without NVML it is CUDA, which reports
/// no rates. Unknown in a CPU build and for empty addresses.
DeviceLink link_between(const std::string& bus_id, const std::string& other_bus_id);

}  // namespace te
