// Grouped GEMMs that grouped_gemm_hopper.cu and grouped_gemm_fp8_hopper.cu do not take (FP32, FP16, unaligned shapes).
#include <type_traits>

#include "kernels/moe/moe_cuda.h"
#include "kernels/moe/plain_tile.cuh"

namespace te::kernels::cuda {
namespace {

using namespace plain;

/// Arguments of a grouped GEMM: scales of experts are null if there are none.
struct Groups {
  const int32_t* offsets;
  const float *a_scales, *b_scales;
  int64_t experts;
  SideScales a_groups, b_groups;

  __device__ float scale(int64_t e) const { return a_scales != nullptr ? a_scales[e] * b_scales[e] : 1.0f; }
};

/// Weights as [experts * n, k], [experts * k, n] or [n, experts * k].
enum class WeightOrder : uint8_t { out_first, in_first, transposed };

/// blockIdx.x counts the row tiles of all experts, each of which may have a partial last tile.
template <class A, class B, class Out>
__global__ void __launch_bounds__(kThreads)
    grouped_gemm_kernel(const A* a, const B* b, Out* out, Groups groups, int64_t n, int64_t k,
                        WeightOrder order, bool accumulate) {
  int64_t tile = blockIdx.x, e = 0, first = 0, rows = 0;
  for (; e < groups.experts; ++e) {
    first = groups.offsets[e], rows = groups.offsets[e + 1] - first;
    const int64_t tiles = (rows + kTile - 1) / kTile;
    if (tile < tiles) break;
    tile -= tiles;
  }
  if (e == groups.experts) return;
  Problem<A, B> p;
  p.a = {a + first * k, rows, k, 1, groups.a_groups, first, 0};
  if (order == WeightOrder::out_first)
    p.b = {b + e * n * k, n, k, 1, groups.b_groups, e * n, 0};
  else if (order == WeightOrder::in_first)
    p.b = {b + e * n * k, n, 1, n};
  else
    p.b = {b + e * k, n, groups.experts * k, 1, groups.b_groups, 0, e * k};
  p.depth = k;
  const Store<Out> store{out + first * n, n, groups.scale(e), accumulate};
  multiply_tile(p, tile * kTile, int64_t{blockIdx.y} * kTile, store);
}

/// `rows`: of operands [m, rows] and [n, rows] in blocks of rows (row_blocks.h); 0: [rows, m] and [rows, n].
template <class A, class B, class Out>
__global__ void __launch_bounds__(kThreads)
    grouped_wgrad_kernel(const A* a, const B* b, Out* out, Groups groups, int64_t m, int64_t n, int64_t rows,
                         bool accumulate) {
  const int64_t e = blockIdx.z, first = groups.offsets[e], count = groups.offsets[e + 1] - first;
  const bool in_rows = rows == 0;
  Problem<A, B> p;
  p.a = {
      in_rows ? a + first * m : a, m, in_rows ? 1 : rows, in_rows ? m : 1, groups.a_groups, 0, first, rows};
  p.b = {
      in_rows ? b + first * n : b, n, in_rows ? 1 : rows, in_rows ? n : 1, groups.b_groups, 0, first, rows};
  p.depth = count;
  const Store<Out> store{out + e * m * n, n, groups.scale(e), accumulate};
  multiply_tile(p, int64_t{blockIdx.y} * kTile, int64_t{blockIdx.x} * kTile, store);
}

SideScales side_scales(const Matrix& matrix) {
  const auto* const data = matrix.scales.as<float>();
  if (matrix.layout == ScaleLayout::vectors) return {data, 0, 1, matrix.rows()};
  if (matrix.layout == ScaleLayout::blocks) return {data, 7, matrix.scales.cols(), 1};
  return {};
}

Groups groups_of(const Matrix& a, const Matrix& b, const Tensor& offsets) {
  static_assert(kScaleBlock == 1 << 7);
  const bool of_experts = a.layout == ScaleLayout::tensor;
  return {offsets.as<int32_t>(),
          of_experts ? a.scales.as<float>() : nullptr,
          of_experts ? b.scales.as<float>() : nullptr,
          offsets.numel() - 1,
          side_scales(a),
          side_scales(b)};
}

template <class A, class B, class Out>
void launch_gemm(const Context& context, const GroupedGemm& args) {
  const Groups groups = groups_of(args.a, args.b, args.offsets);
  const int64_t n = args.out.cols(), k = args.a.cols();
  const WeightOrder order = args.trans_b             ? WeightOrder::out_first
                            : is_fp8(args.b.dtype()) ? WeightOrder::transposed
                                                     : WeightOrder::in_first;
  const dim3 grid(ceil_div(args.out.rows(), kTile) + static_cast<unsigned>(groups.experts),
                  ceil_div(n, kTile));
  grouped_gemm_kernel<A, B, Out><<<grid, kThreads, 0, cuda_stream(context)>>>(
      args.a.values.as<A>(), args.b.values.as<B>(), args.out.as<Out>(), groups, n, k, order, args.accumulate);
  TE_CUDA_CHECK_LAUNCH();
}

template <class A, class B, class Out>
void launch_wgrad(const Context& context, const GroupedWgrad& args) {
  const Groups groups = groups_of(args.a, args.b, args.offsets);
  const bool fp8 = is_fp8(args.a.values.dtype);
  const Tensor &a = args.a.values, &b = args.b.values;
  const int64_t rows = fp8 ? a.cols() : 0, m = fp8 ? a.rows() : a.cols(), n = fp8 ? b.rows() : b.cols();
  const dim3 grid(ceil_div(n, kTile), ceil_div(m, kTile), static_cast<unsigned>(groups.experts));
  grouped_wgrad_kernel<A, B, Out><<<grid, kThreads, 0, cuda_stream(context)>>>(
      a.as<A>(), b.as<B>(), args.out.as<Out>(), groups, m, n, rows, args.accumulate);
  TE_CUDA_CHECK_LAUNCH();
}

template <class A, class B>
void gemm_of(const Context& context, const GroupedGemm& args) {
  using Rounded = std::conditional_t<std::is_same_v<A, float> || std::is_same_v<A, __half>, A, __nv_bfloat16>;
  if (args.out.dtype == DType::f32) return launch_gemm<A, B, float>(context, args);
  if constexpr (!std::is_same_v<Rounded, float>) launch_gemm<A, B, Rounded>(context, args);
}

template <class A, class B>
void gemm_of(const Context& context, const GroupedWgrad& args) {
  if (args.out.dtype == DType::f32) return launch_wgrad<A, B, float>(context, args);
  launch_wgrad<A, B, __nv_bfloat16>(context, args);
}

/// Calls gemm_of() with the operands' device types.
template <class Args>
void dispatch(const Context& context, const Args& args) {
  const DType a = args.a.values.dtype, b = args.b.values.dtype;
  if (a == DType::f32) return gemm_of<float, float>(context, args);
  if (a == DType::bf16) return gemm_of<__nv_bfloat16, __nv_bfloat16>(context, args);
  if (a == DType::f16) return gemm_of<__half, __half>(context, args);
  if (a == DType::e5m2) return gemm_of<__nv_fp8_e5m2, __nv_fp8_e4m3>(context, args);
  if (b == DType::e5m2) return gemm_of<__nv_fp8_e4m3, __nv_fp8_e5m2>(context, args);
  gemm_of<__nv_fp8_e4m3, __nv_fp8_e4m3>(context, args);
}

}  // namespace

void grouped_gemm(const Context& context, const GroupedGemm& args) {
  if constexpr (kHasHopperKernels)
    if (device_caps(context).hopper_kernels &&
        (grouped_gemm_hopper(context, args) || grouped_gemm_fp8_hopper(context, args)))
      return;
  dispatch(context, args);
}

void grouped_wgrad(const Context& context, const GroupedWgrad& args) {
  if constexpr (kHasHopperKernels)
    if (device_caps(context).hopper_kernels &&
        (grouped_wgrad_hopper(context, args) || grouped_wgrad_fp8_hopper(context, args)))
      return;
  dispatch(context, args);
}

}  // namespace te::kernels::cuda
