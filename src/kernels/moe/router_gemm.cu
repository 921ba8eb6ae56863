// The router's GEMMs on the GPU: on Hopper, grouped_gemm_hopper.cu's kernel with one expert if operands are BF16 and
// suit TMA, otherwise a plain kernel (plain_tile.cuh).
#include <algorithm>

#include "kernels/moe/moe_cuda.h"
#include "kernels/moe/plain_tile.cuh"

namespace te::kernels::cuda {
namespace {

using namespace plain;

/// blockIdx.x, y: a tile of rows and columns; z: a part of the summed dimension, of `part` values, whose result is at
/// out + z * m * n.
template <class A, class B, class Out>
__global__ void __launch_bounds__(kThreads)
    router_gemm_kernel(Problem<A, B> p, int64_t part, Out* out, bool accumulate) {
  const int64_t first = int64_t{blockIdx.z} * part;
  p.a.data += first * p.a.k_stride;
  p.b.data += first * p.b.k_stride;
  p.depth = min(part, p.depth - first);
  const Store<Out> store{out + int64_t{blockIdx.z} * p.a.size * p.b.size, p.b.size, 1.0f, accumulate};
  multiply_tile(p, int64_t{blockIdx.x} * kTile, int64_t{blockIdx.y} * kTile, store);
}

template <class A, class B, class Out>
void launch_plain(const Context& context, const Problem<A, B>& problem, int64_t part, Out* out,
                  bool accumulate) {
  const dim3 grid(ceil_div(problem.a.size, kTile), ceil_div(problem.b.size, kTile),
                  ceil_div(problem.depth, part));
  router_gemm_kernel<A, B, Out><<<grid, kThreads, 0, cuda_stream(context)>>>(problem, part, out, accumulate);
  TE_CUDA_CHECK_LAUNCH();
}

/// Calls fn.template operator()<T>() with the device type of a high-precision dtype.
template <class Fn>
void visit_device_type(DType dtype, Fn&& fn) {
  if (dtype == DType::f32) return fn.template operator()<float>();
  if (dtype == DType::bf16) return fn.template operator()<__nv_bfloat16>();
  fn.template operator()<__half>();
}

/// x [count / cols, cols] = high + low, up to 2^-17 of x; `parts` has rows of high and low, one after the other.
__global__ void split_kernel(const float* x, __nv_bfloat16* parts, int64_t count, unsigned cols) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    const __nv_bfloat16 rounded = __float2bfloat16(x[i]);
    __nv_bfloat16* const high = parts + (i + i / cols * cols);
    high[0] = rounded;
    high[cols] = __float2bfloat16(x[i] - __bfloat162float(rounded));
  }
}

template <class Out>
__global__ void add_parts_kernel(const float* parts, int64_t count, int64_t numel, Out* out,
                                 bool accumulate) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < numel;
       i += int64_t{gridDim.x} * blockDim.x) {
    float sum = 0.0f;
    for (int64_t part = 0; part < count; ++part) sum += parts[part * numel + i];
    store_float(out + i, sum + (accumulate ? load_float(out + i) : 0.0f));
  }
}

unsigned elementwise_blocks(int64_t count) {
  return static_cast<unsigned>(std::min<int64_t>(ceil_div(count, kThreads), 4096));
}

/// Scratch memory of a backward pass.
struct Scratch {
  Tensor split;   ///< [T, 2 E] bf16: both parts of d_logits
  Tensor weight;  ///< [2 E, H] bf16: the weight twice
  Tensor parts;   ///< [parts * 2, E, H] fp32, without a split [parts, E, H]
  int64_t part;   ///< tokens
  explicit Scratch(const RouterGemmBackward& a, bool is_split) {
    const int64_t tokens = a.x.rows(), hidden = a.x.cols(), experts = a.weight.rows();
    const int64_t wanted = router_gemm_parts(tokens, 2 * experts, hidden);
    part = ceil_div(ceil_div(tokens, wanted), 16) * 16;
    parts = {a.scratch.data, DType::f32, {ceil_div(tokens, part) * (is_split ? 2 : 1), experts, hidden}};
    weight = {parts.as<float>() + wanted * 2 * experts * hidden, DType::bf16, {2 * experts, hidden}};
    split = {weight.as<char>() + weight.bytes(), DType::bf16, {tokens, 2 * experts}};
  }
};

bool suits_tensor_cores(const Context& context, const RouterGemmBackward& a) {
  if (!kHasHopperKernels || !device_caps(context).hopper_kernels || a.x.dtype != DType::bf16) return false;
  const auto fits = [](const Tensor& tensor) { return is_aligned(tensor.data, 16); };
  return a.weight.rows() % 8 == 0 && a.x.cols() % 8 == 0 && fits(a.x) && fits(a.dx) && fits(a.scratch);
}

void backward_hopper(const Context& context, const RouterGemmBackward& a, const Scratch& scratch) {
  if constexpr (kHasHopperKernels) {
    const int64_t values = a.d_logits.numel();
    split_kernel<<<elementwise_blocks(values), kThreads, 0, cuda_stream(context)>>>(
        a.d_logits.as<float>(), scratch.split.as<__nv_bfloat16>(), values,
        static_cast<unsigned>(a.weight.rows()));
    TE_CUDA_CHECK_LAUNCH();
    for (const int64_t half : {0, 1})
      TE_CUDA_CHECK(cudaMemcpyAsync(scratch.weight.as<char>() + half * a.weight.bytes(), a.weight.data,
                                    a.weight.bytes(), cudaMemcpyDeviceToDevice, cuda_stream(context)));
    bool done = dense_gemm_hopper(context, scratch.split, scratch.weight, false, a.dx, true);
    if (a.d_weight)
      done = done && dense_wgrad_hopper(context, scratch.split, a.x, scratch.part, scratch.parts, false);
    TE_CHECK(done, "router_gemm_backward: the operands do not suit tensor cores");
  }
}

void backward_plain(const Context& context, const RouterGemmBackward& a, const Scratch& scratch) {
  const int64_t tokens = a.x.rows(), hidden = a.x.cols(), experts = a.weight.rows();
  visit_device_type(a.x.dtype, [&]<class T>() {
    launch_plain(
        context,
        Problem<float, T>{
            {a.d_logits.as<float>(), tokens, experts, 1}, {a.weight.as<T>(), hidden, 1, hidden}, experts},
        experts, a.dx.as<T>(), true);
    if (a.d_weight)
      launch_plain(
          context,
          Problem<float, T>{
              {a.d_logits.as<float>(), experts, 1, experts}, {a.x.as<T>(), hidden, 1, hidden}, tokens},
          scratch.part, scratch.parts.as<float>(), false);
  });
}

}  // namespace

void router_gemm(const Context& context, const RouterGemm& args) {
  if constexpr (kHasHopperKernels)
    if (device_caps(context).hopper_kernels &&
        dense_gemm_hopper(context, args.x, args.weight, true, args.logits, false))
      return;
  const int64_t tokens = args.x.rows(), hidden = args.x.cols(), experts = args.weight.rows();
  visit_device_type(args.x.dtype, [&]<class T>() {
    launch_plain(
        context,
        Problem<T, T>{{args.x.as<T>(), tokens, hidden, 1}, {args.weight.as<T>(), experts, hidden, 1}, hidden},
        hidden, args.logits.as<float>(), false);
  });
}

void router_gemm_backward(const Context& context, const RouterGemmBackward& args) {
  const bool split = suits_tensor_cores(context, args);
  const Scratch scratch(args, split);
  split ? backward_hopper(context, args, scratch) : backward_plain(context, args, scratch);
  if (!args.d_weight) return;
  const int64_t numel = args.weight.numel(), parts = scratch.parts.numel() / numel;
  visit_device_type(args.d_weight.dtype, [&]<class T>() {
    add_parts_kernel<<<elementwise_blocks(numel), kThreads, 0, cuda_stream(context)>>>(
        scratch.parts.as<float>(), parts, numel, args.d_weight.as<T>(), args.accumulate);
  });
  TE_CUDA_CHECK_LAUNCH();
}

}  // namespace te::kernels::cuda
