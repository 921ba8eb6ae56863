// GEMMs of one to eight rows: what generation multiplies. Their time is that of reading b, so b is read once, in order,
// with as many bytes in flight as the memory's latency asks for, and tensor cores are not needed.
//
// A warp has kCols rows of b, each a column of the result; a lane takes every 32nd run of 16 bytes of them, for all
// rows of a at once (a is small and stays in the L1 cache). Runs of the next turn are asked for before those of this
// turn are multiplied; the first of all, where early_b allows it, before the kernel in front has ended. The lanes' sums
// are added by a tree: the order is fixed and the same for every row, so a row's bits depend on no other row.
#include "kernels/common/cuda_common.cuh"
#include "kernels/common/dependent_launch.cuh"
#include "kernels/gemm/gemm_cuda.h"

namespace te::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kGroup = 8;  ///< values that are multiplied at a time

struct FewRowsParams {
  const uint4* a;
  const uint4* b;
  void* out;
  const void* bias;       ///< of out's type, or null
  const float* a_scales;  ///< FP8, as the layouts say
  const float* b_scales;
  int rows;
  int64_t cols;                ///< n
  int64_t runs;                ///< of a row of a and of b
  int64_t a_stride, b_stride;  ///< vectors: between the scales of blocks of a; of row blocks of b
  bool scales_by_row;          ///< ScaleLayout::rows, else ::tensor
  bool scales_b_by_vectors;    ///< b's, with a's: vectors, else blocks
  bool early_b;
};

/// 16 bytes of values.
template <DType kType>
struct Run;
template <>
struct Run<DType::bf16> {
  static constexpr int kGroups = 1;
  static __device__ __forceinline__ void unpack(const uint4& run, int, float (&x)[kGroup]) {
    const uint32_t word[4] = {run.x, run.y, run.z, run.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[2 * i] = __uint_as_float(word[i] << 16);
      x[2 * i + 1] = __uint_as_float(word[i] & 0xffff0000u);
    }
  }
};
template <>
struct Run<DType::e4m3> {
  static constexpr int kGroups = 2;
  static __device__ __forceinline__ void unpack(const uint4& run, int group, float (&x)[kGroup]) {
    const uint32_t word[2] = {group == 0 ? run.x : run.z, group == 0 ? run.y : run.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const auto pair = static_cast<__nv_fp8x2_storage_t>(word[i / 2] >> i % 2 * 16);
      const float2 value = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3)));
      x[2 * i] = value.x, x[2 * i + 1] = value.y;
    }
  }
};

/// b is read once: not into the L1 cache, which has a.
__device__ __forceinline__ uint4 load_run(const uint4* p) {
  uint4 run;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(run.x), "=r"(run.y), "=r"(run.z), "=r"(run.w)
               : "l"(p));
  return run;
}

/// kRows: of a, at least p.rows. kBlockScales: of every 128 values along k.
template <DType kType, class Out, int kRows, bool kBlockScales>
class FewRowsWarp {
 public:
  static constexpr int kCols = kRows <= 2 ? 2 : 4, kAhead = kRows <= 2 ? 4 : 2;
  static constexpr int kTurn = kWarpSize * kAhead;  ///< runs
  using Runs = uint4[kAhead][kCols];

  __device__ __forceinline__ FewRowsWarp(const FewRowsParams& params)
      : p(params),
        lane(threadIdx.x % kWarpSize),
        first((int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpSize) * kCols) {}

  /// A column beyond the last is the last one again, a run beyond the last is not used.
  __device__ __forceinline__ void load(int64_t turn, Runs& to) const {
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const int64_t run = turn + u * kWarpSize + lane;
#pragma unroll
      for (int c = 0; c < kCols; ++c)
        if (run < p.runs) to[u][c] = load_run(p.b + min(first + c, p.cols - 1) * p.runs + run);
    }
  }

  __device__ __forceinline__ void multiply(int64_t turn, const Runs& of_b) {
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const int64_t run = turn + u * kWarpSize + lane;
      if (run >= p.runs) break;
      uint4 of_a[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) of_a[r] = p.a[min(r, p.rows - 1) * p.runs + run];
      if constexpr (kBlockScales) {
        float dots[kCols][kRows] = {};
        add_products(of_a, of_b[u], dots);
        add_scaled(run * (Run<kType>::kGroups * kGroup) / kScaleBlock, dots);
      } else {
        add_products(of_a, of_b[u], sums);
      }
    }
  }

  __device__ __forceinline__ void write() const {
#pragma unroll
    for (int c = 0; c < kCols; ++c) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float sum = warp_sum(sums[c][r]);
        if (lane == c * kRows + r && r < p.rows && first + c < p.cols) write(r, first + c, sum);
      }
    }
  }

 private:
  static __device__ __forceinline__ void add_products(const uint4 (&of_a)[kRows], const uint4 (&of_b)[kCols],
                                                      float (&to)[kCols][kRows]) {
#pragma unroll
    for (int g = 0; g < Run<kType>::kGroups; ++g) {
      float b[kCols][kGroup];
#pragma unroll
      for (int c = 0; c < kCols; ++c) Run<kType>::unpack(of_b[c], g, b[c]);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        float a[kGroup];
        Run<kType>::unpack(of_a[r], g, a);
#pragma unroll
        for (int c = 0; c < kCols; ++c) {
#pragma unroll
          for (int i = 0; i < kGroup; ++i) to[c][r] = fmaf(a[i], b[c][i], to[c][r]);
        }
      }
    }
  }

  __device__ __forceinline__ void add_scaled(int64_t block, const float (&dots)[kCols][kRows]) {
#pragma unroll
    for (int c = 0; c < kCols; ++c) {
      const int64_t col = min(first + c, p.cols - 1);
      const float b = p.scales_b_by_vectors ? p.b_scales[block * p.b_stride + col]
                                            : p.b_scales[col / kScaleBlock * p.b_stride + block];
#pragma unroll
      for (int r = 0; r < kRows; ++r)
        sums[c][r] = fmaf(dots[c][r], p.a_scales[block * p.a_stride + min(r, p.rows - 1)] * b, sums[c][r]);
    }
  }

  __device__ __forceinline__ void write(int row, int64_t col, float sum) const {
    if constexpr (kType != DType::bf16 && !kBlockScales)
      sum *= p.a_scales[p.scales_by_row ? row : 0] * p.b_scales[p.scales_by_row ? col : 0];
    if (p.bias != nullptr) sum += load_float(static_cast<const Out*>(p.bias) + col);
    store_float(static_cast<Out*>(p.out) + row * p.cols + col, sum);
  }

  const FewRowsParams& p;
  const int lane;
  const int64_t first;  ///< column of the result
  float sums[kCols][kRows] = {};
};

template <DType kType, class Out, int kRows, bool kBlockScales>
__global__ void __launch_bounds__(kThreads) few_rows_kernel(const __grid_constant__ FewRowsParams p) {
  using Warp = FewRowsWarp<kType, Out, kRows, kBlockScales>;
  Warp warp(p);
  typename Warp::Runs now, next;
  // 1. The first runs of b, then the end of the kernel in front: a is there.
  if (!p.early_b) grid_dependency_wait();
  warp.load(0, now);
  if (p.early_b) grid_dependency_wait();
  allow_dependents();
  // 2. Turn by turn.
  for (int64_t turn = 0; turn < p.runs; turn += Warp::kTurn) {
    warp.load(turn + Warp::kTurn, next);
    warp.multiply(turn, now);
#pragma unroll
    for (int u = 0; u < Warp::kAhead; ++u) {
#pragma unroll
      for (int c = 0; c < Warp::kCols; ++c) now[u][c] = next[u][c];
    }
  }
  // 3. The lanes' sums together.
  warp.write();
}

template <DType kType, class Out, int kRows, bool kBlockScales>
void launch(const Context& context, const FewRowsParams& p) {
  constexpr int kColsOfBlock = kWarps * FewRowsWarp<kType, Out, kRows, kBlockScales>::kCols;
  launch_dependent<few_rows_kernel<kType, Out, kRows, kBlockScales>>(context, ceil_div(p.cols, kColsOfBlock),
                                                                     kThreads, p.early_b, p);
}

template <DType kType, class Out, bool kBlockScales>
void launch_by_rows(const Context& context, const FewRowsParams& p) {
  if (p.rows == 1) return launch<kType, Out, 1, kBlockScales>(context, p);
  if (p.rows == 2) return launch<kType, Out, 2, kBlockScales>(context, p);
  if (p.rows <= 4) return launch<kType, Out, 4, kBlockScales>(context, p);
  launch<kType, Out, 8, kBlockScales>(context, p);
}

template <class Out>
void launch_by_type(const Context& context, const Gemm& args, const FewRowsParams& p) {
  if (args.a.dtype() == DType::bf16) return launch_by_rows<DType::bf16, Out, false>(context, p);
  if (args.a.layout != ScaleLayout::vectors) return launch_by_rows<DType::e4m3, Out, false>(context, p);
  launch_by_rows<DType::e4m3, Out, true>(context, p);
}

}  // namespace

bool gemm_few_rows(const Context& context, const Gemm& args) {
  if (!has_few_rows(args)) return false;
  const int64_t row_bytes = args.a.cols() * static_cast<int64_t>(dtype_size(args.a.dtype()));
  if (row_bytes % 16 != 0 || !is_aligned(args.a.values.data, 16) || !is_aligned(args.b.values.data, 16))
    return false;
  // Of its scales a has those of its rows; b's may be those of single rows, too.
  const bool by_blocks = args.a.layout == ScaleLayout::vectors;
  if (args.a.layout == ScaleLayout::blocks) return false;
  FewRowsParams p;
  p.a = args.a.values.as<uint4>();
  p.b = args.b.values.as<uint4>();
  p.out = args.out.data;
  p.bias = args.bias ? args.bias.data : nullptr;
  p.a_scales = args.a.scales ? args.a.scales.as<float>() : nullptr;
  p.b_scales = args.b.scales ? args.b.scales.as<float>() : nullptr;
  p.rows = static_cast<int>(args.a.rows());
  p.cols = args.b.rows();
  p.runs = row_bytes / 16;
  p.scales_by_row = args.a.layout == ScaleLayout::rows;
  p.scales_b_by_vectors = args.b.layout == ScaleLayout::vectors;
  p.a_stride = args.a.scale_stride > 0 ? args.a.scale_stride : args.a.rows();
  p.b_stride = !p.scales_b_by_vectors    ? (by_blocks ? args.b.scales.cols() : 0)
               : args.b.scale_stride > 0 ? args.b.scale_stride
                                         : args.b.rows();
  p.early_b = args.early_b;
  visit_hp(args.out.dtype,
           [&](auto zero) { launch_by_type<typename DeviceType<decltype(zero)>::type>(context, args, p); });
  return true;
}

}  // namespace te::kernels::cuda
