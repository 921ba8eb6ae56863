// CUDA implementation of device_graph.h.
#include <cuda_runtime.h>

#include "core/cuda_check.h"
#include "core/device_backend.h"

namespace te::cuda_backend {

// The thread-local mode lets other threads (checkpoints, the watchdog) make calls that a capture forbids.
void begin_capture(void* stream) {
  TE_CUDA_CHECK(cudaStreamBeginCapture(static_cast<cudaStream_t>(stream), cudaStreamCaptureModeThreadLocal));
}

void* end_capture(void* stream) {
  cudaGraph_t graph = nullptr;
  TE_CUDA_CHECK(cudaStreamEndCapture(static_cast<cudaStream_t>(stream), &graph));
  cudaGraphExec_t executable = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  TE_CUDA_CHECK(status);
  return executable;
}

void launch_graph(void* graph, void* stream) {
  TE_CUDA_CHECK(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), static_cast<cudaStream_t>(stream)));
}

void destroy_graph(void* graph) {
  if (graph != nullptr) cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph));
}

}  // namespace te::cuda_backend
