// Bias of GEMMs for which cuBLASLt has no epilogue (FP8 operands with an FP32 result and bias).
#include "kernels/common/cuda_common.cuh"
#include "kernels/gemm/gemm_cuda.h"

namespace te::kernels::cuda {
namespace {

constexpr int kThreads = 256;

/// A thread keeps the bias of its column and iterates over the rows; a warp's accesses are contiguous.
template <class T>
__global__ void prepare_bias_kernel(T* out, const T* bias, int64_t rows, int64_t cols, bool accumulate) {
  const int64_t col = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (col >= cols) return;
  const float add = load_float(bias + col);
  for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    T* element = out + row * cols + col;
    store_float(element, accumulate ? load_float(element) + add : add);
  }
}

__global__ void prepare_coefficients_kernel(const float* a, const float* b, float beta, float* out) {
  out[0] = *a * *b;
  out[1] = beta;
}

}  // namespace

void prepare_coefficients(const Context& context, const Tensor& a, const Tensor& b, bool accumulate,
                          float* out) {
  prepare_coefficients_kernel<<<1, 1, 0, cuda_stream(context)>>>(a.as<float>(), b.as<float>(),
                                                                 accumulate ? 1.0f : 0.0f, out);
  TE_CUDA_CHECK_LAUNCH();
}

void prepare_bias(const Context& context, const Tensor& out, const Tensor& bias, bool accumulate) {
  const int64_t rows = out.rows(), cols = out.cols();
  constexpr int64_t kMaxGridRows = 1024;
  const dim3 grid(ceil_div(cols, kThreads), static_cast<unsigned>(rows < kMaxGridRows ? rows : kMaxGridRows));
  visit_high_precision(out.dtype, [&](auto zero) {
    using T = typename DeviceType<decltype(zero)>::type;
    prepare_bias_kernel<T>
        <<<grid, kThreads, 0, cuda_stream(context)>>>(out.as<T>(), bias.as<T>(), rows, cols, accumulate);
  });
  TE_CUDA_CHECK_LAUNCH();
}

}  // namespace te::kernels::cuda
