// Several GEMMs with one to eight rows in one persistent launch, with one block per SM.
//
//   tiles      16 columns of a result need 16 rows of a weight; 8 columns of a gated activation need 8 rows of the gate
//              and the corresponding 8 of `up`. The tiles of all linears, in order, are assigned round-robin to the
//              blocks, so a block knows its tiles and weights in advance.
//   producer   One thread loads these weights, 1 KiB of each of 16 rows at a time, into a ring that fills shared
//              memory. It ignores borders between linears: while the workers wait for a linear's input, it prefetches.
//   workers    Two warpgroups. For each linear: 1. Every block copies the whole input to shared memory
//              (decode_megakernel_input.cuh). 2. One warpgroup multiplies tiles; the other one adds the partial sums of
//              each element in a fixed order, applies bias and activation, and writes the result. 3. Grid barrier.
//
// Weights never pass through registers: Hopper's mma.sync supports E4M3 only by conversion, which is slower than
// memory, and each instruction depends on a load. wgmma reads shared memory, but multiplies 64 rows, while a tile has
// two runs of 8. So a run's eight chunks of 128 bytes are stacked as the 64 rows of one operand, and the eight chunks
// of the input are the columns of the other operand. Of the product
//
//   d[chunk p of row m, chunk q of input row n] = sum over 128 bytes of w[m, p] x[n, q]
//
// only the elements with p = q, an eighth of all, are used. The unused rest costs nothing, because the tensor cores are
// idle otherwise.
//
// Why this approaches memory bandwidth: around attention and between two linears, all blocks wait for some
// microseconds; meanwhile the producers fill the rings. All blocks are resident, one per SM, so the grid barrier can
// spin. The preceding kernel may still run during the first loads (dependent_launch.cuh), because it waits for no block
// of this kernel.
#include <algorithm>
#include <bit>

#include "kernels/common/dependent_launch.cuh"
#include "kernels/gemm/decode_megakernel_cuda.h"
#include "kernels/gemm/decode_megakernel_input.cuh"

namespace te::kernels::cuda {
namespace {

using bf16 = __nv_bfloat16;

constexpr int kMaxSharedBytes = 227 * 1024;
/// Registers per thread. With one row, they leave room for a block of attention (attention/decode.cu) on the same SM.
template <int kRows>
constexpr int kMegakernelRegisters = kRows == 1 ? 120 : 168;

// --- producer ------------------------------------------------------------------------------------------------------

/// Called by one thread. A slot holds two boxes of the weight, in chunks of 128 bytes of 8 rows, swizzled
/// (hopper/tile.cuh). Boxes are used instead of rows, because issuing a copy takes the same time for any size.
template <int kSlots>
__device__ void produce(const MegakernelParams& p, MegakernelShared<kSlots>& shared) {
  typename hopper::Ring<kSlots>::Producer at;
  typename hopper::Ring<kSlots>::Consumer landed;
  int under_way = 0, before = 0;
  for (int i = 0; i < p.count; ++i) hopper::prefetch_map(&p.weights[i]);
  for (int i = 0; i < p.count; ++i) {
    const GemmDesc& desc = p.descs[i];
    const int row_bytes = desc.row_bytes;
    for (int tile = first_tile(before); tile < desc.tiles; tile += static_cast<int>(gridDim.x)) {
      const int row = tile * desc.tile_cols;
      for (int begin = 0; begin < row_bytes; begin += kReadBytes, at.next()) {
        if (under_way == kMaxInFlight) {
          shared.ring.wait(landed);
          landed.next();
        } else {
          ++under_way;
        }
        const auto slot = shared.ring.acquire(at);
        shared.ring.commit(slot, kSlotBytes);
        uint8_t* const to = shared.slots[slot.stage()];
        const int chunk = begin / kChunkBytes;
        hopper::tma_load(to, &p.weights[i], shared.ring.full(slot), 0, row, chunk);
        hopper::tma_load(to + kRunBytes, &p.weights[i], shared.ring.full(slot), 0, row + desc.second_run,
                         chunk);
      }
    }
    before += desc.tiles;
  }
}

// --- workers -------------------------------------------------------------------------------------------------------

/// Prefetches the norms' vectors, which all blocks read at the same time, to the L2 cache.
__device__ void prefetch_vectors(const MegakernelParams& p) {
  constexpr int kLine = 64;  // elements
  const int line =
      (static_cast<int>(blockIdx.x) * kMegakernelWorkers + static_cast<int>(threadIdx.x)) * kLine;
  for (int i = 0; i < p.count; ++i) {
    const GemmDesc& desc = p.descs[i];
    if (line >= desc.k) continue;
    if (desc.gamma != nullptr) hopper::prefetch_line(desc.gamma + line);
    if (desc.beta != nullptr) hopper::prefetch_line(desc.beta + line);
  }
}

/// The multiplying warpgroup. Tensor cores sum the products of one slot (in FP8 with reduced precision), and FP32
/// additions sum over slots.
template <int kSlots, int kRows>
class Multiplier {
 public:
  __device__ __forceinline__ Multiplier(const MegakernelParams& params, MegakernelShared<kSlots>& memory,
                                        const uint8_t* inputs, float* sums)
      : shared(memory),
        input(hopper::shared_address(inputs)),
        tile_sums(sums),
        rows(params.rows),
        warp(static_cast<int>(threadIdx.x) / kWarpSize),
        lane(static_cast<int>(threadIdx.x) % kWarpSize) {}

  /// Multiplies this block's tiles of a linear.
  template <DType kType>
  __device__ __forceinline__ void run(const GemmDesc& desc, int before) {
    const int row_bytes = desc.row_bytes, tiles = desc.tiles, step = static_cast<int>(gridDim.x);
    const uint64_t x = hopper::descriptor_of_groups(input, input_stride(row_bytes));
    for (int tile = first_tile(before); tile < tiles; tile += step) {
#pragma unroll 1  // ptxas cannot overlap the wgmmas of several slots with other instructions (C7511)
      for (int begin = 0; begin < row_bytes; begin += kReadBytes, at.next()) {
        const auto slot = shared.ring.wait(at);
        multiply<kType>(hopper::descriptor(hopper::stage_address(shared.slots, slot.stage())),
                        hopper::advance(x, begin));
        if (lane == 0) shared.ring.release(slot);
      }
      hand_on();
    }
  }

 private:
  using Ring = hopper::Ring<kSlots>;
  static constexpr int kColumns = kRows * kChunks;
  /// Sums of input row r over the 8 rows of a run, in the lanes that hold the elements p = q of the warp's two chunks.
  using Sums = float[kRows];

  /// Multiplies the two runs of a slot, 64 rows each, by the input.
  template <DType kType>
  __device__ __forceinline__ void multiply(uint64_t w, uint64_t x) {
    constexpr int kAtOnce = kRows < kMegakernelRows ? 2 : 1;  // limited by registers
#pragma unroll
    for (int first = 0; first < 2; first += kAtOnce) {
      float d[kAtOnce][kColumns / 2];
      hopper::wgmma_fence();
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u)
#pragma unroll
        for (int i = 0; i < kChunkBytes / 32; ++i)
          multiply<kType>(d[u], hopper::advance(w, (first + u) * kRunBytes + i * 32),
                          hopper::advance(x, i * 32), i > 0);
      hopper::wgmma_commit();
      if constexpr (kAtOnce == 2) hopper::wgmma_wait<0>(d[0], d[1]);
      if constexpr (kAtOnce == 1) hopper::wgmma_wait<0>(d[0]);
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) add(d[u], sums[first + u]);
    }
  }
  template <DType kType>
  static __device__ __forceinline__ void multiply(float (&d)[kColumns / 2], uint64_t w, uint64_t x,
                                                  bool add) {
    if constexpr (kType == DType::bf16) {
      hopper::wgmma<kColumns, hopper::Major::k, hopper::Major::k>(d, w, x, add);
    } else {
      hopper::wgmma_fp8<kColumns, DType::e4m3, DType::e4m3>(d, w, x, add);
    }
  }
  /// Lane l has elements (l / 4, 2 (l % 4)) and (l / 4 + 8, 2 (l % 4) + 1) of the warp's 16 rows. The warp's chunks 2
  /// warp and 2 warp + 1 meet the same chunks of the input where l % 4 = warp.
  static __device__ __forceinline__ void add(const float (&d)[kColumns / 2], Sums& to) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) to[r] += d[4 * r] + d[4 * r + 3];
  }

  __device__ __forceinline__ void hand_on() {
    const auto slot = shared.sums_ring.acquire(at_sums);
    at_sums.next();
#pragma unroll
    for (int run = 0; run < 2; ++run) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (lane % 4 == warp && r < rows)
          tile_sums[sum_index(slot.stage(), warp, r, rows) + run * kRunRows + lane / 4] = sums[run][r];
        sums[run][r] = 0.0f;
      }
    }
    __syncwarp();
    if (lane == 0) shared.sums_ring.commit(slot);
  }

  MegakernelShared<kSlots>& shared;
  const uint32_t input;
  float* const tile_sums;
  const int rows, warp, lane;
  typename Ring::Consumer at;
  hopper::Ring<kSumSlots>::Producer at_sums;
  Sums sums[2] = {};  ///< of the two runs of a tile
};

__device__ float activated(const GemmDesc& desc, float x, float up) {
  switch (desc.kind) {
#define TE_ACTIVATE(kind)    \
  case ActivationKind::kind: \
    return activate<ActivationKind::kind, bf16>(x, up, desc.clamp);
    TE_ACTIVATE(swiglu)
    TE_ACTIVATE(swiglu_clamped)
    TE_ACTIVATE(gelu)
    TE_ACTIVATE(gelu_exact)
    TE_ACTIVATE(relu)
    TE_ACTIVATE(silu)
    TE_ACTIVATE(geglu)
    TE_ACTIVATE(relu2)
#undef TE_ACTIVATE
  }
  return 0.0f;
}

/// The finishing warpgroup: one thread per element of a tile; with a gated activation half of them.
template <int kSlots, int kRows>
class Finisher {
 public:
  __device__ __forceinline__ Finisher(const MegakernelParams& params, MegakernelShared<kSlots>& memory,
                                      const float* sums)
      : shared(memory),
        tile_sums(sums),
        rows(params.rows),
        row((static_cast<int>(threadIdx.x) - kMultipliers) / kMegakernelCols),
        col(static_cast<int>(threadIdx.x) % kMegakernelCols) {}

  /// Finishes this block's tiles of a linear, whose sums are multiplied by `scale`.
  __device__ __forceinline__ void run(const GemmDesc& desc, int before, float scale) {
    const bool mine = row < rows && col < desc.tile_cols;
    for (int tile = first_tile(before); tile < desc.tiles; tile += static_cast<int>(gridDim.x), at.next()) {
      const auto slot = shared.sums_ring.wait(at);
      float value[2] = {};
      if (mine) {
#pragma unroll
        for (int w = 0; w < kMultiplyingWarps; ++w) {
          const float* const of = tile_sums + sum_index(slot.stage(), w, row, rows) + col;
          value[0] += of[0];
          if (desc.gated) value[1] += of[kRunRows];
        }
      }
      __syncwarp();
      if (threadIdx.x % kWarpSize == 0) shared.sums_ring.release(slot);
      if (mine) write(desc, tile * desc.tile_cols + col, value, scale);
    }
  }

 private:
  /// Computes an element of the result from the sums of a tile; with a gated activation from those of the gate and of
  /// `up`.
  __device__ __forceinline__ void write(const GemmDesc& desc, int column, float (&value)[2],
                                        float scale) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (half > 0 && !desc.gated) break;
      if (desc.weight_scale_inv != nullptr) value[half] *= scale;
      if (desc.bias != nullptr) value[half] += load_float(desc.bias + half * desc.cols + column);
      if (!desc.out_fp32) value[half] = round_to<bf16>(value[half]);
    }
    if (desc.activated) value[0] = activated(desc, value[0], value[1]);
    const int64_t at = int64_t{row} * desc.cols + column;
    if (desc.out_fp32) {
      static_cast<float*>(desc.out)[at] = value[0];
    } else {
      store_float(static_cast<bf16*>(desc.out) + at, value[0]);
    }
  }

  MegakernelShared<kSlots>& shared;
  const float* const tile_sums;
  const int rows, row, col;
  hopper::Ring<kSumSlots>::Consumer at;
};

template <int kSlots, int kRows>
__device__ void work(const MegakernelParams& p, MegakernelShared<kSlots>& shared, uint8_t* inputs,
                     float* sums) {
  const bool multiplies = hopper::Thread().warpgroup == 0, leads = threadIdx.x == kMultipliers;
  Multiplier<kSlots, kRows> multiplier(p, shared, inputs, sums);
  Finisher<kSlots, kRows> finisher(p, shared, sums);
  MegakernelInput<kRows> input(p.rows, inputs, shared.partial);
  GridBarrier barrier(p.barrier);
  prefetch_vectors(p);
  wait_on_dependent_grids();
  int before = 0;
  for (int i = 0; i < p.count; ++i) {
    const GemmDesc& desc = p.descs[i];
    const bool fp8 = desc.weight_scale_inv != nullptr;
    // 1. Input
    const float scale_inv =
        fp8 ? input.template prepare<DType::e4m3>(desc) : input.template prepare<DType::bf16>(desc);
    hopper::fence_proxy_async_shared();
    sync_workers();
    if (i + 1 == p.count) launch_dependent_grids();
    // 2. Tiles
    if (multiplies) {
      fp8 ? multiplier.template run<DType::e4m3>(desc, before)
          : multiplier.template run<DType::bf16>(desc, before);
    } else {
      if (leads && i == 0) barrier.begin();
      finisher.run(desc, before, fp8 ? scale_inv * *desc.weight_scale_inv : 1.0f);
    }
    // 3. Grid barrier
    before += desc.tiles;
    if (i + 1 == p.count) break;
    if (!multiplies) {
      sync_finishers();
      if (leads) barrier.arrive_and_wait();
    }
    sync_workers();
  }
}

template <int kSlots, int kRows>
__global__ void __maxnreg__(kMegakernelRegisters<kRows>)
    megakernel_kernel(const __grid_constant__ MegakernelParams p) {
  extern __shared__ __align__(1024) uint8_t memory[];
  MegakernelShared<kSlots>& shared = *reinterpret_cast<MegakernelShared<kSlots>*>(memory);
  uint8_t* const inputs = memory + sizeof(shared);
  if (threadIdx.x == 0) {
    shared.ring.init(1, kMultiplyingWarps);
    shared.sums_ring.init(kMultiplyingWarps, kFinishers / kWarpSize);
    hopper::fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x < kMegakernelWorkers) {
    work<kSlots, kRows>(p, shared, inputs, reinterpret_cast<float*>(inputs + p.input_bytes));
  } else if (threadIdx.x % kWarpSize == 0) {
    produce<kSlots>(p, shared);
  }
}

// --- launch --------------------------------------------------------------------------------------------------------

bool is_gated(const MegakernelGemm& g) {
  return g.activated && kernels::is_gated(g.kind);
}

int weight_row_bytes(const MegakernelGemm& g) {
  return static_cast<int>(g.weight.cols()) * (g.weight.dtype() == DType::e4m3 ? 1 : 2);
}

/// Boxes of 128 bytes of 8 rows, eight of them next to each other. After the last chunk of a row come zeros.
CUtensorMap map_of(const MegakernelGemm& g) {
  const int64_t bytes = weight_row_bytes(g);
  return hopper::tensor_map(g.weight.values.data,
                            {.dims = {kChunkBytes, g.weight.rows(), bytes / kChunkBytes},
                             .strides = {1, bytes, kChunkBytes},
                             .box = {kChunkBytes, kRunRows, kChunks}},
                            DType::e4m3);
}

GemmDesc desc_of(const MegakernelGemm& g) {
  GemmDesc desc{};
  if (g.weight.dtype() == DType::e4m3) desc.weight_scale_inv = g.weight.scales.as<float>();
  const auto values = [](const Tensor& tensor) { return tensor ? tensor.as<bf16>() : nullptr; };
  desc.bias = values(g.bias);
  desc.x = values(g.x);
  desc.delta = values(g.norm.delta);
  desc.gamma = values(g.norm.gamma);
  desc.beta = values(g.norm.beta);
  desc.sum = values(g.norm.sum);
  desc.out = g.out.data;
  desc.out_fp32 = g.out.dtype == DType::f32;
  desc.k = static_cast<int>(g.weight.cols());
  desc.row_bytes = weight_row_bytes(g);
  desc.cols = static_cast<int>(g.out.cols());
  desc.gated = is_gated(g);
  desc.tile_cols = desc.gated ? kRunRows : kMegakernelCols;
  desc.second_run = desc.gated ? desc.cols : kRunRows;
  desc.tiles = desc.cols / desc.tile_cols;
  desc.activated = g.activated;
  desc.layer = g.norm.kind == NormKind::layer;
  desc.zero_centered = g.norm.kind == NormKind::rms_zero_centered;
  desc.power_of_two = g.power_of_two;
  desc.kind = g.kind;
  desc.eps = g.norm.eps;
  desc.clamp = g.clamp;
  desc.margin_factor = ldexpf(1.0f, -g.margin);
  return desc;
}

bool possible(const GemmDesc& desc, const Tensor& weight, int rows) {
  const bool normed = desc.gamma == nullptr || rows > 1 || desc.k <= kMaxNormed;
  return normed && is_aligned(weight.data, 16) && desc.row_bytes % kChunkBytes == 0 &&
         is_aligned(desc.x, 16) && is_aligned(desc.delta, 16) && is_aligned(desc.gamma, 16) &&
         is_aligned(desc.beta, 16) && is_aligned(desc.sum, 16);
}

/// Number of rows that a kernel is compiled for.
int padded_rows(int rows) {
  return static_cast<int>(std::bit_ceil(static_cast<unsigned>(rows)));
}

/// Shared memory for a linear's input. wgmma reads padded_rows(rows) rows; the contents of the padding do not matter.
int input_bytes(const GemmDesc& desc, int rows) {
  const bool kept = rows > 1 && desc.weight_scale_inv != nullptr && desc.gamma != nullptr;
  const int read = padded_rows(rows) * input_stride(desc.row_bytes);
  return std::max(read, rows * (input_stride(desc.row_bytes) + (kept ? input_stride(2 * desc.k) : 0)));
}

struct Megakernel {
  MegakernelParams params{};
  bool possible = true;

  explicit Megakernel(const DecodeMegakernel& megakernel) {
    params.rows = static_cast<int>(megakernel.gemms.front().x.rows());
    params.barrier = megakernel.barrier.as<uint32_t>();
    for (const MegakernelGemm& gemm : megakernel.gemms) {
      const GemmDesc desc = desc_of(gemm);
      possible = possible && cuda::possible(desc, gemm.weight.values, params.rows);
      params.input_bytes = std::max(params.input_bytes, input_bytes(desc, params.rows));
      params.descs[params.count++] = desc;
    }
  }
  template <int kSlots>
  int bytes() const {
    return static_cast<int>(sizeof(MegakernelShared<kSlots>)) + params.input_bytes + sums_bytes(params.rows);
  }
  template <int kSlots>
  bool fits() const {
    return bytes<kSlots>() <= kMaxSharedBytes;
  }
  template <int kSlots>
  void launch(const Context& context) const {
    switch (padded_rows(params.rows)) {
      case 1:
        return launch<kSlots, 1>(context);
      case 2:
        return launch<kSlots, 2>(context);
      case 4:
        return launch<kSlots, 4>(context);
      default:
        return launch<kSlots, kMegakernelRows>(context);
    }
  }

 private:
  template <int kSlots, int kRows>
  void launch(const Context& context) const {
    constexpr auto kKernel = megakernel_kernel<kSlots, kRows>;
    // Requests the maximum, because a smaller megakernel must not reduce the limit of a larger one in a captured graph.
    TE_CUDA_CHECK(
        cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxSharedBytes));
    launch_dependent(context, kKernel, sm_count(context), kMegakernelThreads,
                     static_cast<size_t>(bytes<kSlots>()), true, params);
  }
};

/// Slots of the ring: as many as fit next to the inputs, but at least kFewSlots.
constexpr int kMaxSlots = 12, kManySlots = 10, kSomeSlots = 8, kFewSlots = 6;

}  // namespace

bool has_decode_megakernel(const DecodeMegakernel& args) {
  const Megakernel megakernel(args);
  return megakernel.possible && megakernel.fits<kFewSlots>();
}

void decode_megakernel(const Context& context, const DecodeMegakernel& args) {
  Megakernel megakernel(args);
  for (size_t i = 0; i < args.gemms.size(); ++i) megakernel.params.weights[i] = map_of(args.gemms[i]);
  if (megakernel.fits<kMaxSlots>()) return megakernel.launch<kMaxSlots>(context);
  if (megakernel.fits<kManySlots>()) return megakernel.launch<kManySlots>(context);
  if (megakernel.fits<kSomeSlots>()) return megakernel.launch<kSomeSlots>(context);
  megakernel.launch<kFewSlots>(context);
}

}  // namespace te::kernels::cuda
