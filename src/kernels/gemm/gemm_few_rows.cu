// GEMMs with one to eight rows, as in generation. Their time is bound by reading b, so b is read once, with enough
// bytes in flight to cover the memory latency. If early_b allows it, the first loads start before the preceding kernel
// has ended. An activation after the GEMM is fused.
//
// A block computes 16 columns of the result (with a gated activation: 16 of the gate and the corresponding 16 of `up`).
// Its warps divide k among them, 128 bytes of a row at a time. The tensor cores multiply 16 rows of b by 8 rows of a
// (mma.m16n8k16, or k32 for E4M3), so eight rows cost as much as one. The assignment of k indices to fragment elements
// is arbitrary as long as a and b agree, so a lane loads 16 bytes of a row and uses them as the fragments of two
// instructions. The warps' sums are added in a fixed order that does not depend on the row, so a row's result does not
// depend on other rows.
#include "kernels/common/dependent_launch.cuh"
#include "kernels/gemm/few_rows.cuh"
#include "kernels/gemm/gemm_activation_cuda.h"
#include "kernels/gemm/gemm_cuda.h"

namespace te::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kCols = kFewRowsCols;  ///< per block
constexpr int kStepRuns = 8;         ///< 16-byte runs of a row per warp and step
constexpr int kAheadRuns = 8;  ///< 16-byte loads in flight per lane and row of a tile: kStepRuns / 4 per step

struct FewRowsParams {
  const uint4* a;
  const uint4* b;
  void* out;
  void* y;                ///< result of the activation
  const void* bias;       ///< dtype of out; may be null
  const float* a_scales;  ///< FP8, in the layouts of matrix.h
  const float* b_scales;
  int rows;
  int64_t cols;                ///< n, or half of it with a gated activation
  int64_t runs;                ///< 16-byte runs per row of a and of b
  int64_t a_stride, b_stride;  ///< vectors: strides of the scales of a and b
  bool scales_by_row;          ///< ScaleLayout::rows, otherwise ::tensor
  bool scales_b_by_vectors;    ///< layout of b's scales if a has vectors: vectors, otherwise blocks
  bool early_b;
  float clamp;
};

/// Loads b, which is read once, without L1 allocation, because the L1 cache holds a.
__device__ __forceinline__ uint4 load_run(const uint4* p) {
  uint4 run;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(run.x), "=r"(run.y), "=r"(run.z), "=r"(run.w)
               : "l"(p));
  return run;
}

struct NoActivation {
  static constexpr bool kGated = false, kExists = false;
};
template <ActivationKind kind>
struct Activation {
  static constexpr bool kGated = is_gated(kind), kExists = true;
  template <class T>
  static __device__ __forceinline__ float value(float x, float up, float clamp) {
    return activate<kind, T>(x, up, clamp);
  }
};

/// kBlockScales: scales per 128 values of k, which are one step in E4M3.
template <DType kType, class Out, bool kBlockScales, class Act>
class FewRowsWarp {
 public:
  static constexpr int kTiles = Act::kGated ? 2 : 1, kLoads = kStepRuns / 4;
  static constexpr int kAhead = kAheadRuns / kLoads / kTiles;                         ///< steps
  static constexpr int64_t kRunsPerIteration = int64_t{kStepRuns} * kWarps * kAhead;  ///< runs
  using Shared = float[kTiles][kWarps][kFewRows][kCols];

  __device__ __forceinline__ FewRowsWarp(const FewRowsParams& params)
      : p(params),
        group(threadIdx.x % kWarpSize / 4),
        member(threadIdx.x % 4),
        warp(threadIdx.x / kWarpSize),
        first(int64_t{blockIdx.x} * kCols) {}

  /// Loads the runs of a step. Beyond the last column the last one is repeated; beyond the last run are zeros.
  __device__ __forceinline__ void load_b(int64_t first_run, int s) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int64_t run = run_of(first_run, s, i);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int half = 0; half < 2; ++half)
          b[s][i][t][half] = run < p.runs ? load_run(p.b + row_of_b(t, half) * p.runs + run) : uint4{};
      }
    }
  }

  __device__ __forceinline__ void multiply_by_a(int64_t first_run, int s) {
    uint4 a[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int64_t run = run_of(first_run, s, i);
      a[i] = run < p.runs && group < p.rows ? p.a[group * p.runs + run] : uint4{};
    }
    if constexpr (kBlockScales) {
      float of_block[kTiles][4] = {};
      add_step(a, b[s], of_block);
      add_scaled(run_of(first_run, s, 0) / kStepRuns, of_block);
    } else {
      add_step(a, b[s], sums);
    }
  }

  __device__ __forceinline__ void write(Shared& shared) const {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) shared[t][warp][2 * member + i % 2][group + i / 2 * 8] = sums[t][i];
    }
    __syncthreads();
    const int row = static_cast<int>(threadIdx.x) / kCols, col = static_cast<int>(threadIdx.x) % kCols;
    if (row >= p.rows || first + col >= p.cols) return;
    float of[kTiles] = {};
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int w = 0; w < kWarps; ++w) of[t] += shared[t][w][row][col];
    }
    finish(row, first + col, of);
  }

 private:
  using Runs = uint4[kLoads][kTiles][2];

  __device__ __forceinline__ int64_t run_of(int64_t first_run, int step, int i) const {
    return first_run + (step * kWarps + warp) * kStepRuns + i * 4 + member;
  }
  __device__ __forceinline__ int64_t row_of_b(int tile, int half) const {
    return tile * p.cols + min(first + group + half * 8, p.cols - 1);
  }

  static __device__ __forceinline__ void add_step(const uint4 (&a)[kLoads], const Runs& b,
                                                  float (&to)[kTiles][4]) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const uint4 &low = b[i][t][0], &high = b[i][t][1];
        multiply_runs<kType>(to[t], low, high, a[i]);
      }
    }
  }

  __device__ __forceinline__ void add_scaled(int64_t block, const float (&of_block)[kTiles][4]) {
    if (block * kStepRuns >= p.runs) return;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = min(2 * member + i % 2, p.rows - 1);
        const int64_t col = row_of_b(t, i / 2);
        const float of_b = p.scales_b_by_vectors ? p.b_scales[block * p.b_stride + col]
                                                 : p.b_scales[col / kScaleBlock * p.b_stride + block];
        sums[t][i] = fmaf(of_block[t][i], p.a_scales[block * p.a_stride + row] * of_b, sums[t][i]);
      }
    }
  }

  __device__ __forceinline__ void finish(int row, int64_t col, const float (&of)[kTiles]) const {
    float value[kTiles];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const int64_t column = t * p.cols + col;
      value[t] = of[t];
      if constexpr (kType != DType::bf16 && !kBlockScales)
        value[t] *= p.a_scales[p.scales_by_row ? row : 0] * p.b_scales[p.scales_by_row ? column : 0];
      if (p.bias != nullptr) value[t] += load_float(static_cast<const Out*>(p.bias) + column);
      value[t] = round_to<Out>(value[t]);
      store_float(static_cast<Out*>(p.out) + row * p.cols * kTiles + column, value[t]);
    }
    if constexpr (Act::kExists)
      store_float(static_cast<Out*>(p.y) + row * p.cols + col,
                  Act::template value<Out>(value[0], value[kTiles - 1], p.clamp));
  }

  const FewRowsParams& p;
  const int group, member;  ///< in fragments: row of a tile of b and of a; quarter of their 64 bytes
  const int warp;
  const int64_t first;  ///< first column of the result
  float sums[kTiles][4] = {};
  Runs b[kAhead];
};

template <DType kType, class Out, bool kBlockScales, class Act>
__global__ void __launch_bounds__(kThreads, 2) few_rows_kernel(const __grid_constant__ FewRowsParams p) {
  using Warp = FewRowsWarp<kType, Out, kBlockScales, Act>;
  __shared__ typename Warp::Shared shared;
  Warp warp(p);
  // 1. The first runs of b, then the end of the preceding kernel, after which a is complete
  if (!p.early_b) wait_on_dependent_grids();
#pragma unroll
  for (int s = 0; s < Warp::kAhead; ++s) warp.load_b(0, s);
  if (p.early_b) wait_on_dependent_grids();
  launch_dependent_grids();
  // 2. Step by step; a step's registers are refilled with the runs of kAhead steps later
  for (int64_t first_run = 0; first_run < p.runs; first_run += Warp::kRunsPerIteration) {
#pragma unroll
    for (int s = 0; s < Warp::kAhead; ++s) {
      warp.multiply_by_a(first_run, s);
      warp.load_b(first_run + Warp::kRunsPerIteration, s);
    }
  }
  // 3. Add the warps' sums
  warp.write(shared);
}

template <DType kType, class Out, bool kBlockScales, class Act>
void launch(const Context& context, const FewRowsParams& p) {
  launch_dependent(context, few_rows_kernel<kType, Out, kBlockScales, Act>, ceil_div(p.cols, kCols), kThreads,
                   0, p.early_b, p);
}

template <class Out>
void launch_by_type(const Context& context, const Gemm& args, const FewRowsParams& p) {
  if (args.a.dtype() == DType::bf16) return launch<DType::bf16, Out, false, NoActivation>(context, p);
  if (args.a.layout != ScaleLayout::vectors) return launch<DType::e4m3, Out, false, NoActivation>(context, p);
  launch<DType::e4m3, Out, true, NoActivation>(context, p);
}

FewRowsParams params_of(const Gemm& args) {
  FewRowsParams p{};
  p.a = args.a.values.as<uint4>();
  p.b = args.b.values.as<uint4>();
  p.out = args.out.data;
  p.bias = args.bias ? args.bias.data : nullptr;
  p.rows = static_cast<int>(args.a.rows());
  p.cols = args.b.rows();
  p.runs = args.a.cols() * static_cast<int64_t>(dtype_size(args.a.dtype())) / 16;
  p.early_b = args.early_b;
  if (!args.a.scales) return p;
  p.a_scales = args.a.scales.as<float>();
  p.b_scales = args.b.scales.as<float>();
  p.scales_by_row = args.a.layout == ScaleLayout::rows;
  p.scales_b_by_vectors = args.b.layout == ScaleLayout::vectors;
  p.a_stride = args.a.scale_stride > 0 ? args.a.scale_stride : args.a.rows();
  if (args.b.layout == ScaleLayout::blocks) p.b_stride = args.b.scales.cols();
  if (p.scales_b_by_vectors) p.b_stride = args.b.scale_stride > 0 ? args.b.scale_stride : args.b.rows();
  return p;
}

/// The GEMM of the kernel with an activation.
Gemm gemm_of(const GemmActivationForward& args) {
  return {
      .a = args.a, .b = args.b, .out = args.out, .trans_b = true, .bias = args.bias, .early_b = args.early_b};
}

}  // namespace

bool fits_few_rows(const Gemm& args) {
  const int64_t row_bytes = args.a.cols() * static_cast<int64_t>(dtype_size(args.a.dtype()));
  return has_few_rows(args) && row_bytes % 16 == 0 && is_aligned(args.a.values.data, 16) &&
         is_aligned(args.b.values.data, 16) && args.a.layout != ScaleLayout::blocks;
}

bool fits_few_rows(const GemmActivationForward& args) {
  return args.a.dtype() == DType::bf16 && fits_few_rows(gemm_of(args));
}

bool gemm_few_rows(const Context& context, const Gemm& args) {
  if (!fits_few_rows(args)) return false;
  visit_high_precision(args.out.dtype, [&](auto zero) {
    launch_by_type<typename DeviceType<decltype(zero)>::type>(context, args, params_of(args));
  });
  return true;
}

bool gemm_activation_few_rows(const Context& context, const GemmActivationForward& args) {
  if (!fits_few_rows(args)) return false;
  FewRowsParams p = params_of(gemm_of(args));
  p.y = args.y.data;
  p.cols = args.y.cols();
  p.clamp = args.clamp;
  visit_activation(args.kind, [&]<ActivationKind kind>() {
    launch<DType::bf16, __nv_bfloat16, false, Activation<kind>>(context, p);
  });
  return true;
}

}  // namespace te::kernels::cuda
