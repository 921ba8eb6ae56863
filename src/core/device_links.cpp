#include "core/device_links.h"

#include "core/device_backend.h"

namespace te {

#ifndef TE_WITH_CUDA
namespace cuda_backend {
DeviceLink link_between(const std::string&, const std::string&) {
  return {};
}
}  // namespace cuda_backend
#endif

DeviceLink link_between(const std::string& bus_id, const std::string& other_bus_id) {
  if (bus_id.empty() || other_bus_id.empty()) return {};
  return cuda_backend::link_between(bus_id, other_bus_id);
}

}  // namespace te
