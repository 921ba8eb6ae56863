// CUDA functions that device.cpp, device_graph.cpp and device_links.cpp call. The *_cuda.cpp files implement them; a
// CPU build has stubs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/device.h"
#include "core/device_links.h"

namespace te::cuda_backend {

int device_count();
void* create_stream(int ordinal);  ///< selects the device for this process and creates a CUDA stream
void* create_side_stream(int ordinal, bool urgent);
void destroy_stream(void* stream);
void* create_event();
void destroy_event(void* event);
void record_event(void* event, void* stream);
void wait_event(void* event, void* stream);
bool event_done(void* event);
DeviceInfo info(int ordinal);
/// 10 * major + minor of the architecture of the compiled code that runs on a device; 0 if none does.
int compiled_architecture(int ordinal);
int64_t memory_bandwidth(int ordinal);
DeviceLink link_between(const std::string& bus_id, const std::string& other_bus_id);
void synchronize(void* stream);
void* allocate(size_t bytes);
void release(void* data);
void* allocate_host(size_t bytes);
void release_host(void* data);
void copy(void* destination, const void* source, size_t bytes, void* stream);
void fill(void* data, uint8_t byte, size_t bytes, void* stream);
void begin_capture(void* stream);
void* end_capture(void* stream);  ///< returns an instantiated graph
void launch_graph(void* graph, void* stream);
void destroy_graph(void* graph);

}  // namespace te::cuda_backend
