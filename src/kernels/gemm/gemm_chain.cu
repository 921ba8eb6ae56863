// A chain of GEMMs of one to eight rows as one launch of a block on every multiprocessor.
//
//   tiles      16 columns of a result (of a gated activation: 16 of the gate and the 16 of `up` that meet them) take
//              16 rows of a weight. The tiles of all linears, one linear behind another, go round the blocks, so a
//              block knows its tiles, and the weights it will read, before anything else is known.
//   producer   one warp reads these weights, 1 KiB of each of 16 rows at a time, into a ring that fills shared memory.
//              It knows no borders between linears: while the others wait for a linear's input, it reads on.
//   consumers  eight warps share k, 128 bytes of a row each. Per linear: 1. wait until all blocks have written the
//              results of the one before (a barrier of the grid); 2. its input to shared memory, every block all of it:
//              norm, and cast where the weight is E4M3; 3. tiles, the warps' sums added in a fixed order.
//
// What makes it as fast as memory: the barrier, the norm and the end of a linear take two to four microseconds, and the
// ring holds what memory delivers in five. The blocks are all resident, one a multiprocessor, so the barrier may spin;
// the kernel in front may still run beside the first reads (dependent_launch.cuh), since it waits for nobody here.
#include <algorithm>

#include "kernels/common/dependent_launch.cuh"
#include "kernels/gemm/few_rows.cuh"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_chain_cuda.h"
#include "kernels/hopper/ring.cuh"
#include "kernels/norm/norm_device.cuh"
#include "kernels/scale_update/scale_formula.h"

namespace te::kernels::cuda {
namespace {

using bf16 = __nv_bfloat16;

constexpr int kWarps = 8;  ///< consumers
constexpr int kConsumers = kWarps * kWarpSize;
constexpr int kThreads = kConsumers + kWarpSize;
constexpr int kCols = kFewRowsCols;
constexpr int kReadBytes = 1024;             ///< of a row of a weight at a time
constexpr int kRowStride = kReadBytes + 64;  ///< in a slot: two rows side by side meet all banks
constexpr int kSlotBytes = kCols * kRowStride;
constexpr int kMaxSharedBytes = 227 * 1024;
constexpr int kRows = static_cast<int>(kFewRows);

/// A ChainedGemm.
struct Link {
  const uint8_t* weight;
  const float* weight_scale_inv;  ///< E4M3, else null
  const bf16 *bias, *x, *delta, *gamma, *beta;
  bf16 *sum, *out;
  int k, row_bytes, tiles, cols;  ///< row_bytes: of the weight; cols: of out
  bool gated, activated, layer, zero_centered, power_of_two;
  ActivationKind kind;
  float eps, clamp, margin_factor;
};

struct ChainParams {
  Link links[kMostChained];
  int count, rows;
  uint32_t* barrier;
};

/// Bytes between rows of an input in shared memory: two rows side by side meet all banks, too.
__host__ __device__ constexpr int input_stride(int row_bytes) {
  return (row_bytes + 127) / 128 * 128 + 64;
}

template <int kSlots>
struct Shared {
  hopper::Ring<kSlots> ring;
  float sums[2][2][kWarps][kRows][kCols];  ///< in turn; gate and up
  float partial[2][kWarps][kRows];         ///< in turn: of rows, by warps
  alignas(128) uint8_t slots[kSlots][kSlotBytes];
};

/// fn(tile) of this block's tiles of a linear; `before`: tiles of those in front.
template <class Fn>
__device__ __forceinline__ void for_own_tiles(int tiles, int before, Fn&& fn) {
  const int blocks = static_cast<int>(gridDim.x);
  const int first = (static_cast<int>(blockIdx.x) + blocks - before % blocks) % blocks;
  for (int tile = first; tile < tiles; tile += blocks) fn(tile);
}

// --- the producer --------------------------------------------------------------------------------------------------

template <int kSlots>
__device__ void produce(const ChainParams& p, Shared<kSlots>& shared) {
  typename hopper::Ring<kSlots>::Producer at;
  const int lane = threadIdx.x % kWarpSize;
  int before = 0;
  for (int i = 0; i < p.count; ++i) {
    const Link& link = p.links[i];
    for_own_tiles(link.tiles, before, [&](int tile) {
      for (int half = 0; half < (link.gated ? 2 : 1); ++half) {
        const int row = half * link.cols + tile * kCols + lane;
        const uint8_t* const from = link.weight + int64_t{row} * link.row_bytes;
        for (int begin = 0; begin < link.row_bytes; begin += kReadBytes, at.next()) {
          const int bytes = min(kReadBytes, link.row_bytes - begin);
          const auto slot = shared.ring.acquire(at);
          if (lane == 0) shared.ring.commit(slot, static_cast<uint32_t>(kCols * bytes));
          __syncwarp();
          if (lane < kCols)
            hopper::bulk_load(shared.slots[slot.stage()] + lane * kRowStride, from + begin,
                              static_cast<uint32_t>(bytes), shared.ring.full(slot));
        }
      }
    });
    before += link.tiles;
  }
}

// --- the consumers -------------------------------------------------------------------------------------------------

__device__ __forceinline__ void sync_consumers() {
  hopper::named_barrier_sync<kConsumers>(1);
}

/// Of all blocks' consumers: what they have written to global memory is seen by all. It leaves *state as it was.
__device__ void sync_grid(uint32_t* state) {
  sync_consumers();
  if (threadIdx.x == 0) {
    __threadfence();
    // The upper bit turns when all have added.
    constexpr uint32_t kTurn = 0x80000000u;
    const uint32_t before = atomicAdd(state, blockIdx.x == 0 ? kTurn - (gridDim.x - 1) : 1u);
    uint32_t now;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(state) : "memory");
    } while (((before ^ now) & kTurn) == 0);
    __threadfence();
  }
  sync_consumers();
}

/// Eight values of a row.
struct Eight {
  float v[8];

  __device__ __forceinline__ explicit Eight(const uint4& packed) {
    const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[2 * i] = hopper::low_bf16(words[i]);
      v[2 * i + 1] = hopper::high_bf16(words[i]);
    }
  }
  __device__ __forceinline__ uint4 packed() const {
    return {hopper::pack_bf16(v[0], v[1]), hopper::pack_bf16(v[2], v[3]), hopper::pack_bf16(v[4], v[5]),
            hopper::pack_bf16(v[6], v[7])};
  }
  __device__ __forceinline__ uint2 cast(float scale) const {
    Vector<uint8_t, 8> bytes;
#pragma unroll
    for (int i = 0; i < 8; ++i) bytes.v[i] = to_fp8<DType::e4m3>(v[i] * scale);
    return *reinterpret_cast<const uint2*>(&bytes);
  }
  __device__ __forceinline__ uint32_t largest() const {
    uint32_t bits = 0;
#pragma unroll
    for (float x : v) bits = max(bits, abs_bits(x));
    return bits;
  }
};

/// What another block may have written in this launch: not from the L1 cache.
__device__ __forceinline__ Eight load_eight(const bf16* p) {
  return Eight(__ldcg(reinterpret_cast<const uint4*>(p)));
}
__device__ __forceinline__ Eight constant_eight(const bf16* p) {
  return Eight(__ldg(reinterpret_cast<const uint4*>(p)));
}

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

template <int kSlots>
class Consumer {
 public:
  __device__ __forceinline__ Consumer(const ChainParams& params, Shared<kSlots>& memory)
      : p(params),
        shared(memory),
        input(reinterpret_cast<uint8_t*>(&memory + 1)),
        warp(static_cast<int>(threadIdx.x) / kWarpSize),
        lane(static_cast<int>(threadIdx.x) % kWarpSize) {}

  __device__ void run() {
    grid_dependency_wait();
    int before = 0;
    for (int i = 0; i < p.count; ++i) {
      const Link& link = p.links[i];
      if (i > 0) sync_grid(p.barrier);
      if (i + 1 == p.count) allow_dependents();
      link.weight_scale_inv != nullptr ? run_link<DType::e4m3>(link, before)
                                       : run_link<DType::bf16>(link, before);
      before += link.tiles;
    }
  }

 private:
  template <DType kType>
  __device__ __forceinline__ void run_link(const Link& link, int before) {
    const float scale_inv = prepare<kType>(link);
    sync_consumers();
    for_own_tiles(link.tiles, before, [&](int tile) {
      float sums[2][4] = {};
#pragma unroll
      for (int half = 0; half < 2; ++half)
        if (half == 0 || link.gated) multiply_tile<kType>(link, sums[half]);
      finish(link, tile, sums, scale_inv);
    });
  }

  // 16 rows of the weight times the input.
  template <DType kType>
  __device__ __forceinline__ void multiply_tile(const Link& link, float (&sums)[4]) {
    const int group = lane / 4, stride = input_stride(link.row_bytes), of_warp = warp * 128 + lane % 4 * 16;
    for (int begin = 0; begin < link.row_bytes; begin += kReadBytes, at.next()) {
      const auto slot = shared.ring.wait(at);
      const uint8_t* const low = shared.slots[slot.stage()] + group * kRowStride;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int offset = of_warp + i * 64;
        const bool exists = begin + offset < link.row_bytes;
        const auto load = [&](const uint8_t* row, bool there) {
          return there ? *reinterpret_cast<const uint4*>(row + offset) : uint4{};
        };
        multiply_runs<kType>(sums, load(low, exists), load(low + 8 * kRowStride, exists),
                             load(input + group * stride + begin, exists && group < p.rows));
      }
      __syncwarp();
      if (lane == 0) shared.ring.release(slot);
    }
  }

  __device__ __forceinline__ void finish(const Link& link, int tile, const float (&sums)[2][4],
                                         float scale_inv) {
    auto& of_warps = shared.sums[turn];
    turn ^= 1;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        of_warps[half][warp][2 * (lane % 4) + i % 2][lane / 4 + i / 2 * 8] = sums[half][i];
    }
    sync_consumers();
    const int row = static_cast<int>(threadIdx.x) / kCols, col = static_cast<int>(threadIdx.x) % kCols;
    if (row >= p.rows) return;
    float value[2] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (half > 0 && !link.gated) break;
      const int column = half * link.cols + tile * kCols + col;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) value[half] += of_warps[half][w][row][col];
      if (link.weight_scale_inv != nullptr) value[half] *= scale_inv * *link.weight_scale_inv;
      if (link.bias != nullptr) value[half] += load_float(link.bias + column);
      value[half] = round_to<bf16>(value[half]);
    }
    if (link.activated) value[0] = activated(link, value[0], value[1]);
    store_float(link.out + int64_t{row} * link.cols + tile * kCols + col, value[0]);
  }

  // --- inputs

  /// The input to shared memory, as fragments read it; returns the inverse of the scale that it is cast with.
  template <DType kType>
  __device__ __forceinline__ float prepare(const Link& link) {
    const int stride = input_stride(link.row_bytes);
    if constexpr (kType == DType::bf16) {
      if (link.gamma != nullptr) {
        normalize(link, input, stride);
      } else {
        for_own_eights(link, [&](int row, int c) {
          *eight_at(input, stride, row, c) = load_eight(link.x + int64_t{row} * link.k + c).packed();
        });
      }
      return 1.0f;
    } else {
      // The norm's result waits behind the input for the amax; another one is read twice.
      uint8_t* const kept = input + p.rows * stride;
      const int kept_stride = input_stride(2 * link.k);
      if (link.gamma != nullptr) normalize(link, kept, kept_stride);
      const auto values = [&](int row, int c) {
        return link.gamma != nullptr ? Eight(*eight_at(kept, kept_stride, row, c))
                                     : load_eight(link.x + int64_t{row} * link.k + c);
      };
      uint32_t largest = 0;
      for_own_eights(link, [&](int row, int c) { largest = max(largest, values(row, c).largest()); });
      const float amax = __uint_as_float(largest_of_block(largest));
      const float scale = group_scale(amax, fp8_max(DType::e4m3), link.margin_factor, link.power_of_two);
      for_own_eights(link, [&](int row, int c) {
        *reinterpret_cast<uint2*>(input + row * stride + c) = values(row, c).cast(scale);
      });
      return 1.0f / scale;
    }
  }

  static __device__ __forceinline__ uint4* eight_at(uint8_t* rows, int stride, int row, int column) {
    return reinterpret_cast<uint4*>(rows + row * stride + 2 * column);
  }

  /// fn(row, first column) of this thread's part of the input, always the same.
  template <class Fn>
  __device__ __forceinline__ void for_own_eights(const Link& link, Fn&& fn) const {
    for (int row = 0; row < p.rows; ++row)
      for (int c = static_cast<int>(threadIdx.x) * 8; c < link.k; c += kConsumers * 8) fn(row, c);
  }

  /// norm(x + delta) to shared memory; the sum to global memory.
  __device__ __forceinline__ void normalize(const Link& link, uint8_t* rows, int stride) {
    const auto own = [&](int row, auto&& fn) {
      for (int c = static_cast<int>(threadIdx.x) * 8; c < link.k; c += kConsumers * 8) fn(c);
    };
    float mean[kRows] = {}, rstd[kRows] = {};
    // 1. The sum, and its mean where the norm has one.
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      if (row >= p.rows) break;
      own(row, [&](int c) {
        const int64_t at_global = int64_t{row} * link.k + c;
        Eight x = load_eight(link.x + at_global);
        if (link.delta != nullptr) {
          const Eight delta = load_eight(link.delta + at_global);
#pragma unroll
          for (int j = 0; j < 8; ++j) x.v[j] = round_to<bf16>(x.v[j] + delta.v[j]);
          if (blockIdx.x == 0) *reinterpret_cast<uint4*>(link.sum + at_global) = x.packed();
        }
        *eight_at(rows, stride, row, c) = x.packed();
#pragma unroll
        for (float value : x.v) mean[row] += value, rstd[row] += value * value;
      });
    }
    const float size = static_cast<float>(link.k);
    if (link.layer) {
      add_over_block(mean);
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        if (row >= p.rows) break;
        mean[row] /= size, rstd[row] = 0.0f;
        own(row, [&](int c) {
          const Eight x(*eight_at(rows, stride, row, c));
#pragma unroll
          for (float value : x.v) rstd[row] += (value - mean[row]) * (value - mean[row]);
        });
      }
    }
    // 2. Its standard deviation.
    add_over_block(rstd);
    // 3. Normalized.
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      if (row >= p.rows) break;
      const float factor = 1.0f / sqrtf(rstd[row] / size + link.eps);
      own(row, [&](int c) {
        Eight x(*eight_at(rows, stride, row, c));
        const Eight gamma = constant_eight(link.gamma + c),
                    beta = link.layer ? constant_eight(link.beta + c) : Eight(uint4{});
#pragma unroll
        for (int j = 0; j < 8; ++j)
          x.v[j] = norm_element(link.layer, x.v[j], mean[row], factor,
                                norm_gain(link.zero_centered, gamma.v[j]), beta.v[j]);
        *eight_at(rows, stride, row, c) = x.packed();
      });
    }
  }

  /// Sums over the consumers, given to all. One barrier: a warp that writes one of two buffers has passed the barrier
  /// behind which all have read it. The same holds of largest_of_block() and finish().
  __device__ __forceinline__ void add_over_block(float (&values)[kRows]) {
    auto& buffer = shared.partial[turn_of_partial];
    turn_of_partial ^= 1;
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      if (row >= p.rows) break;
      const float sum = warp_sum(values[row]);
      if (lane == 0) buffer[warp][row] = sum;
    }
    sync_consumers();
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      if (row >= p.rows) break;
      values[row] = 0.0f;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) values[row] += buffer[w][row];
    }
  }

  __device__ __forceinline__ uint32_t largest_of_block(uint32_t bits) {
    auto& buffer = shared.partial[turn_of_partial];
    turn_of_partial ^= 1;
    bits = __reduce_max_sync(0xffffffffu, bits);
    if (lane == 0) buffer[warp][0] = __uint_as_float(bits);
    sync_consumers();
#pragma unroll
    for (int w = 0; w < kWarps; ++w) bits = max(bits, __float_as_uint(buffer[w][0]));
    return bits;
  }

  const ChainParams& p;
  Shared<kSlots>& shared;
  uint8_t* const input;
  const int warp, lane;
  typename hopper::Ring<kSlots>::Consumer at;
  int turn = 0, turn_of_partial = 0;
};

template <int kSlots>
__global__ void __launch_bounds__(kThreads, 1) chain_kernel(const __grid_constant__ ChainParams p) {
  extern __shared__ __align__(128) uint8_t memory[];
  Shared<kSlots>& shared = *reinterpret_cast<Shared<kSlots>*>(memory);
  if (threadIdx.x == 0) {
    shared.ring.init(1, kWarps);
    hopper::fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x >= kConsumers) {
    produce<kSlots>(p, shared);
  } else {
    Consumer<kSlots>(p, shared).run();
  }
}

// --- launch --------------------------------------------------------------------------------------------------------

Link link_of(const ChainedGemm& g) {
  const bool fp8 = g.weight.dtype() == DType::e4m3;
  Link link{};
  link.weight = g.weight.values.as<uint8_t>();
  if (fp8) link.weight_scale_inv = g.weight.scales.as<float>();
  const auto values = [](const Tensor& tensor) { return tensor ? tensor.as<bf16>() : nullptr; };
  link.bias = values(g.bias);
  link.x = values(g.x);
  link.delta = values(g.norm.delta);
  link.gamma = values(g.norm.gamma);
  link.beta = values(g.norm.beta);
  link.sum = values(g.norm.sum);
  link.out = values(g.out);
  link.k = static_cast<int>(g.weight.cols());
  link.row_bytes = link.k * (fp8 ? 1 : 2);
  link.cols = static_cast<int>(g.out.cols());
  link.tiles = link.cols / kCols;
  link.gated = g.activated && is_gated(g.kind);
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

bool aligned(const Link& link) {
  return is_aligned(link.weight, 16) && is_aligned(link.x, 16) && is_aligned(link.delta, 16) &&
         is_aligned(link.gamma, 16) && is_aligned(link.beta, 16) && is_aligned(link.sum, 16);
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
    params.count = static_cast<int>(chain.gemms.size());
    params.rows = static_cast<int>(chain.gemms.front().x.rows());
    params.barrier = chain.barrier.as<uint32_t>();
    for (size_t i = 0; i < chain.gemms.size(); ++i) {
      const Link& link = params.links[i] = link_of(chain.gemms[i]);
      aligned = aligned && cuda::aligned(link);
      inputs = std::max(inputs, input_bytes(link, params.rows));
    }
  }
  template <int kSlots>
  int bytes() const {
    return static_cast<int>(sizeof(Shared<kSlots>)) + inputs;
  }
  template <int kSlots>
  bool fits() const {
    return bytes<kSlots>() <= kMaxSharedBytes;
  }
  template <int kSlots>
  void launch(const Context& context) const {
    TE_CUDA_CHECK(cudaFuncSetAttribute(chain_kernel<kSlots>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       bytes<kSlots>()));
    launch_dependent(context, chain_kernel<kSlots>, multiprocessor_count(context), kThreads,
                     static_cast<size_t>(bytes<kSlots>()), true, params);
  }
};

/// Slots of the ring: as many as find room beside the inputs, and not fewer than the last.
constexpr int kMostSlots = 10, kSomeSlots = 8, kFewSlots = 6;

}  // namespace

bool has_gemm_chain(const GemmChain& args) {
  const Chain chain(args);
  return chain.aligned && chain.fits<kFewSlots>();
}

void gemm_chain(const Context& context, const GemmChain& args) {
  const Chain chain(args);
  if (chain.fits<kMostSlots>()) return chain.launch<kMostSlots>(context);
  if (chain.fits<kSomeSlots>()) return chain.launch<kSomeSlots>(context);
  chain.launch<kFewSlots>(context);
}

}  // namespace te::kernels::cuda
