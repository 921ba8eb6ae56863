// A chain of GEMMs of one to eight rows as one launch of a block on every multiprocessor.
//
//   tiles      16 columns of a result (of a gated activation: 16 of the gate and the 16 of `up` that meet them) take
//              16 rows of a weight. The tiles of all linears, one linear behind another, go round the blocks, so a
//              block knows its tiles, and the weights it will read, before anything else is known.
//   producer   one thread reads these weights, 1 KiB of each of 16 rows at a time, into a ring that fills shared
//              memory. It knows no borders between linears: while the others wait for a linear's input, it reads on.
//   consumers  eight warps share k, 128 bytes of a row each. Per linear: 1. its input to shared memory, every block all
//              of it (gemm_chain_input.cuh); 2. tiles, of which each warp hands its sums on.
//   finishers  four warps add the eight sums of each element in a fixed order, with bias and activation, and write the
//              result. Behind a linear's last tile they wait until all blocks are there (a barrier of the grid), and
//              let the consumers go on to the next linear.
//
// What is to make it as fast as memory: around attention, and between two linears, everybody waits for some
// microseconds, and meanwhile the ring takes what memory delivers in five. The blocks are all resident, one a
// multiprocessor, so the barrier may spin; the kernel in front may still run beside the first reads
// (dependent_launch.cuh), since it waits for nobody here.
#include <algorithm>

#include "kernels/common/dependent_launch.cuh"
#include "kernels/gemm/gemm_chain_cuda.h"
#include "kernels/gemm/gemm_chain_input.cuh"

namespace te::kernels::cuda {
namespace {

using bf16 = __nv_bfloat16;

constexpr int kMaxSharedBytes = 227 * 1024;

// --- the producer --------------------------------------------------------------------------------------------------

/// One thread. A slot is a box of the weight, in pieces of 128 bytes of 16 rows, whose swizzle spreads what a warp
/// reads over all banks. One copy for all of it: each takes some 50 ns to ask for, however small.
template <int kSlots>
__device__ void produce(const ChainParams& p, ChainShared<kSlots>& shared) {
  typename hopper::Ring<kSlots>::Producer at;
  for (int i = 0; i < p.count; ++i) hopper::prefetch_map(&p.weights[i]);
  int before = 0;
  for (int i = 0; i < p.count; ++i) {
    const Link& link = p.links[i];
    for (int tile = first_tile(before); tile < link.tiles; tile += static_cast<int>(gridDim.x)) {
      for (int half = 0; half < (link.gated ? 2 : 1); ++half) {
        const int row = half * link.cols + tile * kChainCols;
        for (int begin = 0; begin < link.row_bytes; begin += kReadBytes, at.next()) {
          const auto slot = shared.ring.acquire(at);
          shared.ring.commit(slot, kSlotBytes);
          hopper::tma_load(shared.slots[slot.stage()], &p.weights[i], shared.ring.full(slot), 0, row,
                           begin / kSwizzleBytes);
        }
      }
    }
    before += link.tiles;
  }
}

// --- the consumers -------------------------------------------------------------------------------------------------

/// Norms' vectors, which all blocks will ask for at once, into the L2 cache.
__device__ void prefetch_vectors(const ChainParams& p) {
  constexpr int kLine = 64;  // elements
  const int line = (static_cast<int>(blockIdx.x) * kChainConsumers + static_cast<int>(threadIdx.x)) * kLine;
  for (int i = 0; i < p.count; ++i) {
    const Link& link = p.links[i];
    if (line >= link.k) continue;
    if (link.gamma != nullptr) hopper::prefetch_line(link.gamma + line);
    if (link.beta != nullptr) hopper::prefetch_line(link.beta + line);
  }
}

template <int kSlots>
class Consumer {
 public:
  __device__ __forceinline__ Consumer(const ChainParams& params, ChainShared<kSlots>& memory, float* sums,
                                      uint8_t* inputs)
      : p(params),
        shared(memory),
        tile_sums(sums),
        input(inputs),
        chain_input(params.rows, inputs, memory.partial),
        warp(static_cast<int>(threadIdx.x) / kWarpSize),
        lane(static_cast<int>(threadIdx.x) % kWarpSize) {}

  __device__ void run() {
    prefetch_vectors(p);
    grid_dependency_wait();
    int before = 0;
    for (int i = 0; i < p.count; ++i) {
      const Link& link = p.links[i];
      if (i > 0) sync_chain();
      if (i + 1 == p.count) allow_dependents();
      link.weight_scale_inv != nullptr ? run_link<DType::e4m3>(link, before)
                                       : run_link<DType::bf16>(link, before);
      before += link.tiles;
    }
  }

 private:
  template <DType kType>
  __device__ __forceinline__ void run_link(const Link& link, int before) {
    const float scale_inv = chain_input.template prepare<kType>(link);
    if (threadIdx.x == 0) shared.input_scale_inv = scale_inv;
    sync_chain();
    for (int tile = first_tile(before); tile < link.tiles; tile += static_cast<int>(gridDim.x)) {
      float sums[2][4] = {};
#pragma unroll
      for (int half = 0; half < 2; ++half)
        if (half == 0 || link.gated) multiply_tile<kType>(link, sums[half]);
      hand_on(link, sums);
    }
  }

  // 16 rows of the weight times the input. A lane has every other 16 bytes of the warp's piece.
  template <DType kType>
  __device__ __forceinline__ void multiply_tile(const Link& link, float (&sums)[4]) {
    const int group = lane / 4, member = lane % 4;
    const uint8_t* const row = input + group * input_stride(link.row_bytes) + warp * kSwizzleBytes;
    for (int begin = 0; begin < link.row_bytes; begin += kReadBytes, at.next()) {
      const auto slot = shared.ring.wait(at);
      if (begin + warp * kSwizzleBytes < link.row_bytes) {
        const uint8_t* const low = shared.slots[slot.stage()] + warp * kPieceBytes + group * kSwizzleBytes;
        const uint8_t* const high = low + 8 * kSwizzleBytes;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int unit = 2 * member + i, swizzled = (unit ^ group) * 16;
          multiply_runs<kType>(sums, sixteen(low + swizzled), sixteen(high + swizzled),
                               group < p.rows ? sixteen(row + begin + unit * 16) : uint4{});
        }
      }
      __syncwarp();
      if (lane == 0) shared.ring.release(slot);
    }
  }
  static __device__ __forceinline__ uint4 sixteen(const uint8_t* from) {
    return *reinterpret_cast<const uint4*>(from);
  }

  __device__ __forceinline__ void hand_on(const Link& link, const float (&sums)[2][4]) {
    const auto slot = shared.sums_ring.acquire(at_sums);
    at_sums.next();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (half > 0 && !link.gated) break;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = 2 * (lane % 4) + i % 2, col = lane / 4 + i / 2 * 8;
        if (row < p.rows) tile_sums[sum_index(slot.stage(), half, warp, row, p.rows) + col] = sums[half][i];
      }
    }
    __syncwarp();
    if (lane == 0) shared.sums_ring.commit(slot);
  }

  const ChainParams& p;
  ChainShared<kSlots>& shared;
  float* const tile_sums;
  uint8_t* const input;
  ChainInput chain_input;
  const int warp, lane;
  typename hopper::Ring<kSlots>::Consumer at;
  hopper::Ring<kSumSlots>::Producer at_sums;
};

// --- the finishers -------------------------------------------------------------------------------------------------

__device__ float activated(const Link& link, float x, float up) {
  switch (link.kind) {
#define TE_ACTIVATE(kind)    \
  case ActivationKind::kind: \
    return activate<ActivationKind::kind, bf16>(x, up, link.clamp);
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

/// The element of the result that this thread has of a tile.
__device__ __forceinline__ void finish(const Link& link, int row, int column, float (&value)[2],
                                       float scale_inv) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (half > 0 && !link.gated) break;
    if (link.weight_scale_inv != nullptr) value[half] *= scale_inv;
    if (link.bias != nullptr) value[half] += load_float(link.bias + half * link.cols + column);
    value[half] = round_to<bf16>(value[half]);
  }
  if (link.activated) value[0] = activated(link, value[0], value[1]);
  store_float(link.out + int64_t{row} * link.cols + column, value[0]);
}

template <int kSlots>
__device__ void finish_all(const ChainParams& p, ChainShared<kSlots>& shared, const float* sums) {
  const int thread = static_cast<int>(threadIdx.x) - kChainConsumers, lane = thread % kWarpSize;
  const int row = thread / kChainCols, col = thread % kChainCols;
  hopper::Ring<kSumSlots>::Consumer at;
  grid_dependency_wait();
  GridBarrier barrier(p.barrier);
  int before = 0;
  for (int i = 0; i < p.count; ++i) {
    const Link& link = p.links[i];
    sync_chain();  // the input is there
    const float scale_inv =
        link.weight_scale_inv != nullptr ? shared.input_scale_inv * *link.weight_scale_inv : 1.0f;
    for (int tile = first_tile(before); tile < link.tiles; tile += static_cast<int>(gridDim.x), at.next()) {
      const auto slot = shared.sums_ring.wait(at);
      float value[2] = {};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (row >= p.rows || (half > 0 && !link.gated)) break;
#pragma unroll
        for (int w = 0; w < kChainWarps; ++w)
          value[half] += sums[sum_index(slot.stage(), half, w, row, p.rows) + col];
      }
      __syncwarp();
      if (lane == 0) shared.sums_ring.release(slot);
      if (row < p.rows) finish(link, row, tile * kChainCols + col, value, scale_inv);
    }
    before += link.tiles;
    if (i + 1 == p.count) break;
    sync_finishers();
    if (thread == 0) barrier.arrive_and_wait();
    sync_chain();  // the consumers' next input may be read
  }
}

template <int kSlots>
__global__ void __launch_bounds__(kChainThreads, 1) chain_kernel(const __grid_constant__ ChainParams p) {
  extern __shared__ __align__(1024) uint8_t memory[];
  ChainShared<kSlots>& shared = *reinterpret_cast<ChainShared<kSlots>*>(memory);
  float* const sums = reinterpret_cast<float*>(&shared + 1);
  if (threadIdx.x == 0) {
    shared.ring.init(1, kChainWarps);
    shared.sums_ring.init(kChainWarps, kFinishingWarps);
    hopper::fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x >= kChainConsumers + kFinishers) {
    if (threadIdx.x % kWarpSize == 0) produce<kSlots>(p, shared);
  } else if (threadIdx.x >= kChainConsumers) {
    finish_all<kSlots>(p, shared, sums);
  } else {
    Consumer<kSlots>(p, shared, sums, memory + sizeof(shared) + sums_bytes(p.rows)).run();
  }
}

// --- launch --------------------------------------------------------------------------------------------------------

bool is_gated_link(const ChainedGemm& g) {
  return g.activated && is_gated(g.kind);
}

int weight_row_bytes(const ChainedGemm& g) {
  return static_cast<int>(g.weight.cols()) * (g.weight.dtype() == DType::e4m3 ? 1 : 2);
}

/// 128 bytes of 16 rows, eight times side by side. Behind the last piece of a row come zeros.
CUtensorMap map_of(const ChainedGemm& g) {
  const int64_t bytes = weight_row_bytes(g);
  return hopper::tensor_map(g.weight.values.data,
                            {.dims = {kSwizzleBytes, g.weight.rows(), bytes / kSwizzleBytes},
                             .strides = {1, bytes, kSwizzleBytes},
                             .box = {kSwizzleBytes, kChainCols, kChainWarps}},
                            DType::e4m3);
}

Link link_of(const ChainedGemm& g) {
  Link link{};
  if (g.weight.dtype() == DType::e4m3) link.weight_scale_inv = g.weight.scales.as<float>();
  const auto values = [](const Tensor& tensor) { return tensor ? tensor.as<bf16>() : nullptr; };
  link.bias = values(g.bias);
  link.x = values(g.x);
  link.delta = values(g.norm.delta);
  link.gamma = values(g.norm.gamma);
  link.beta = values(g.norm.beta);
  link.sum = values(g.norm.sum);
  link.out = values(g.out);
  link.k = static_cast<int>(g.weight.cols());
  link.row_bytes = weight_row_bytes(g);
  link.cols = static_cast<int>(g.out.cols());
  link.tiles = link.cols / kChainCols;
  link.gated = is_gated_link(g);
  link.activated = g.activated;
  link.layer = g.norm.kind == NormKind::layer;
  link.zero_centered = g.norm.kind == NormKind::rms_zero_centered;
  link.power_of_two = g.power_of_two;
  link.kind = g.kind;
  link.eps = g.norm.eps;
  link.clamp = g.clamp;
  link.margin_factor = ldexpf(1.0f, -g.margin);
  return link;
}

bool aligned(const Link& link, const Tensor& weight) {
  return is_aligned(weight.data, 16) && link.row_bytes % kSwizzleBytes == 0 && is_aligned(link.x, 16) &&
         is_aligned(link.delta, 16) && is_aligned(link.gamma, 16) && is_aligned(link.beta, 16) &&
         is_aligned(link.sum, 16);
}

/// Shared memory for a linear's input.
int input_bytes(const Link& link, int rows) {
  const bool kept = link.weight_scale_inv != nullptr && link.gamma != nullptr;
  return rows * (input_stride(link.row_bytes) + (kept ? input_stride(2 * link.k) : 0));
}

struct Chain {
  ChainParams params{};
  int inputs = 0;  ///< bytes of shared memory
  bool aligned = true;

  explicit Chain(const GemmChain& chain) {
    params.rows = static_cast<int>(chain.gemms.front().x.rows());
    params.barrier = chain.barrier.as<uint32_t>();
    for (const ChainedGemm& gemm : chain.gemms) {
      const Link link = link_of(gemm);
      aligned = aligned && cuda::aligned(link, gemm.weight.values);
      inputs = std::max(inputs, input_bytes(link, params.rows));
      params.links[params.count++] = link;
    }
  }
  template <int kSlots>
  int bytes() const {
    return static_cast<int>(sizeof(ChainShared<kSlots>)) + sums_bytes(params.rows) + inputs;
  }
  template <int kSlots>
  bool fits() const {
    return bytes<kSlots>() <= kMaxSharedBytes;
  }
  template <int kSlots>
  void launch(const Context& context) const {
    // All there is: a smaller chain must not take it from a larger one that has been recorded.
    TE_CUDA_CHECK(cudaFuncSetAttribute(chain_kernel<kSlots>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       kMaxSharedBytes));
    launch_dependent(context, chain_kernel<kSlots>, multiprocessor_count(context), kChainThreads,
                     static_cast<size_t>(bytes<kSlots>()), true, params);
  }
};

/// Slots of the ring: as many as find room beside the inputs, and not fewer than the last.
constexpr int kMostSlots = 12, kManySlots = 10, kSomeSlots = 8, kFewSlots = 6;

}  // namespace

bool has_gemm_chain(const GemmChain& args) {
  const Chain chain(args);
  return chain.aligned && chain.fits<kFewSlots>();
}

void gemm_chain(const Context& context, const GemmChain& args) {
  Chain chain(args);
  for (size_t i = 0; i < args.gemms.size(); ++i) chain.params.weights[i] = map_of(args.gemms[i]);
  if (chain.fits<kMostSlots>()) return chain.launch<kMostSlots>(context);
  if (chain.fits<kManySlots>()) return chain.launch<kManySlots>(context);
  if (chain.fits<kSomeSlots>()) return chain.launch<kSomeSlots>(context);
  chain.launch<kFewSlots>(context);
}

}  // namespace te::kernels::cuda
