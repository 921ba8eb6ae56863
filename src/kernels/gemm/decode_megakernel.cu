// A chain of GEMMs of one to eight rows as one launch of a block on every multiprocessor.
//
//   tiles      16 columns of a result take 16 rows of a weight, 8 columns of a gated activation 8 of the gate and the
//              8 of `up` that meet them. The tiles of all linears, one linear behind another, go round the blocks, so
//              a block knows its tiles, and the weights it will read, before anything else is known.
//   producer   one thread reads these weights, 1 KiB of each of 16 rows at a time, into a ring that fills shared
//              memory. It knows no borders between linears: while the others wait for a linear's input, it reads on.
//   workers    two warpgroups. Per linear: 1. its input to shared memory, every block all of it
//   (decode_megakernel_input.cuh);
//              2. one multiplies tiles and hands sums on; the other adds those of each element up in a fixed order,
//              with bias and activation, and writes the result; 3. a barrier of the grid.
//
// Weights never pass through registers: Hopper's mma.sync has E4M3 only by conversions, which take longer than memory,
// and each of its instructions stands for a load. wgmma reads shared memory, but multiplies 64 rows, and a tile has two
// runs of 8. So a run's eight pieces of 128 bytes lie below each other as the 64 rows of one operand, and the eight
// pieces of the input beside each other as eight columns of the other. Of the product
//
//   d[piece p of row m, piece q of input row n] = sum over 128 bytes of w[m, p] x[n, q]
//
// the elements p = q are what is looked for, an eighth; the rest costs nothing, for the tensor cores are idle.
//
// What is to make it as fast as memory: around attention, and between two linears, everybody waits for some
// microseconds, and meanwhile the ring takes what memory delivers in five. The blocks are all resident, one a
// multiprocessor, so the barrier may spin; the kernel in front may still run beside the first reads
// (dependent_launch.cuh), since it waits for nobody here.
#include <algorithm>
#include <bit>

#include "kernels/common/dependent_launch.cuh"
#include "kernels/gemm/decode_megakernel_cuda.h"
#include "kernels/gemm/decode_megakernel_input.cuh"

namespace te::kernels::cuda {
namespace {

using bf16 = __nv_bfloat16;

constexpr int kMaxSharedBytes = 227 * 1024;
/// Of a thread: for one row what leaves room for a block of attention (attention/decode.cu) beside a chain's.
template <int kRows>
constexpr int kMegakernelRegisters = kRows == 1 ? 120 : 168;

// --- the producer --------------------------------------------------------------------------------------------------

/// One thread. A slot is two boxes of the weight, in pieces of 128 bytes of 8 rows, swizzled (hopper/tile.cuh).
/// Boxes and not rows: each copy takes some 50 ns to ask for, however small.
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
        const int piece = begin / kPieceBytes;
        hopper::tma_load(to, &p.weights[i], shared.ring.full(slot), 0, row, piece);
        hopper::tma_load(to + kRunBytes, &p.weights[i], shared.ring.full(slot), 0, row + desc.second_run,
                         piece);
      }
    }
    before += desc.tiles;
  }
}

// --- the workers ---------------------------------------------------------------------------------------------------

/// Norms' vectors, which all blocks will ask for at once, into the L2 cache.
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

/// The warpgroup that multiplies. Products are summed over one slot by the tensor cores, whose sums of FP8 are short,
/// and over slots by FP32 additions.
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

  /// This block's tiles of a linear.
  template <DType kType>
  __device__ __forceinline__ void run(const GemmDesc& desc, int before) {
    const int row_bytes = desc.row_bytes, tiles = desc.tiles, step = static_cast<int>(gridDim.x);
    const uint64_t x = hopper::descriptor_of_groups(input, input_stride(row_bytes));
    for (int tile = first_tile(before); tile < tiles; tile += step) {
#pragma unroll 1  // several slots' wgmmas are more than ptxas lets run beside other instructions (C7511)
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
  static constexpr int kColumns = kRows * kPieces;
  /// Of input row r: of 8 rows of a run in the lanes that have the elements p = q of the warp's two pieces.
  using Sums = float[kRows];

  /// The two runs of a slot, 64 rows each, times the input.
  template <DType kType>
  __device__ __forceinline__ void multiply(uint64_t w, uint64_t x) {
    constexpr int kAtOnce = kRows < kMegakernelRows ? 2 : 1;  // for which there are registers
#pragma unroll
    for (int first = 0; first < 2; first += kAtOnce) {
      float d[kAtOnce][kColumns / 2];
      hopper::wgmma_fence();
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u)
#pragma unroll
        for (int i = 0; i < kPieceBytes / 32; ++i)
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
  /// Lane l has elements (l / 4, 2 (l % 4)) and (l / 4 + 8, 2 (l % 4) + 1) of the warp's 16 rows: its pieces 2 warp and
  /// 2 warp + 1 meet those of the input where l % 4 = warp.
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
#undef TE_ACTIVATE
  }
  return 0.0f;
}

/// The warpgroup that finishes: a thread for each element of a tile; of a gated activation half of them.
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

  /// This block's tiles of a linear, whose products are multiplied by `scale`.
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
  /// Sums of a tile to an element of the result; of a gated activation from those of the gate and of `up`.
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
    // 1. The input.
    const float scale_inv =
        fp8 ? input.template prepare<DType::e4m3>(desc) : input.template prepare<DType::bf16>(desc);
    hopper::fence_proxy_async_shared();
    sync_workers();
    if (i + 1 == p.count) launch_dependent_grids();
    // 2. Tiles.
    if (multiplies) {
      fp8 ? multiplier.template run<DType::e4m3>(desc, before)
          : multiplier.template run<DType::bf16>(desc, before);
    } else {
      if (leads && i == 0) barrier.begin();
      finisher.run(desc, before, fp8 ? scale_inv * *desc.weight_scale_inv : 1.0f);
    }
    // 3. All of them.
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
  return g.activated && is_gated(g.kind);
}

int weight_row_bytes(const MegakernelGemm& g) {
  return static_cast<int>(g.weight.cols()) * (g.weight.dtype() == DType::e4m3 ? 1 : 2);
}

/// 128 bytes of 8 rows, eight times side by side. Behind the last piece of a row come zeros.
CUtensorMap map_of(const MegakernelGemm& g) {
  const int64_t bytes = weight_row_bytes(g);
  return hopper::tensor_map(g.weight.values.data,
                            {.dims = {kPieceBytes, g.weight.rows(), bytes / kPieceBytes},
                             .strides = {1, bytes, kPieceBytes},
                             .box = {kPieceBytes, kRunRows, kPieces}},
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
  return normed && is_aligned(weight.data, 16) && desc.row_bytes % kPieceBytes == 0 &&
         is_aligned(desc.x, 16) && is_aligned(desc.delta, 16) && is_aligned(desc.gamma, 16) &&
         is_aligned(desc.beta, 16) && is_aligned(desc.sum, 16);
}

/// Those that a kernel is made for.
int padded_rows(int rows) {
  return static_cast<int>(std::bit_ceil(static_cast<unsigned>(rows)));
}

/// Shared memory for a linear's input: wgmma reads padded_rows(rows), of which it needs no more than that they are
/// there.
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
    // All there is: a smaller chain must not take it from a larger one that has been recorded.
    TE_CUDA_CHECK(
        cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxSharedBytes));
    launch_dependent(context, kKernel, sm_count(context), kMegakernelThreads,
                     static_cast<size_t>(bytes<kSlots>()), true, params);
  }
};

/// Slots of the ring: as many as find room beside the inputs, and not fewer than the last.
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
