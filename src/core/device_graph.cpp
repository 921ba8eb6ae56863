#include "core/device_graph.h"

#include <exception>
#include <utility>

#include "core/device_backend.h"
#include "core/error.h"

namespace te {

#ifndef TE_WITH_CUDA
// Never called: a CPU build has no graphs.
namespace cuda_backend {
void begin_capture(void*) {}
void* end_capture(void*) {
  return nullptr;
}
void launch_graph(void*, void*) {}
void destroy_graph(void*) {}
}  // namespace cuda_backend
#endif

DeviceGraph::~DeviceGraph() {
  if (graph_ != nullptr) cuda_backend::destroy_graph(graph_);
}

DeviceGraph::DeviceGraph(DeviceGraph&& other) noexcept : graph_(std::exchange(other.graph_, nullptr)) {}

DeviceGraph& DeviceGraph::operator=(DeviceGraph&& other) noexcept {
  std::swap(graph_, other.graph_);
  return *this;
}

void DeviceGraph::record(const Context& context, const std::function<void()>& work) {
  TE_CHECK(supported(context) && !recorded(), "a device graph needs a GPU and can be recorded only once");
  cuda_backend::begin_capture(context.stream());
  try {
    work();
  } catch (...) {
    const std::exception_ptr error = std::current_exception();
    try {
      cuda_backend::destroy_graph(cuda_backend::end_capture(context.stream()));
    } catch (const std::exception&) {
      // `error` has already ended the capture; it is the one to report.
    }
    std::rethrow_exception(error);
  }
  graph_ = cuda_backend::end_capture(context.stream());
}

void DeviceGraph::launch(const Context& context) const {
  TE_CHECK(recorded(), "launch of a device graph that was not recorded");
  cuda_backend::launch_graph(graph_, context.stream());
}

}  // namespace te
