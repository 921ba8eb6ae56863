// Core of the Hopper kernels: rings with delays on every side, ordered barriers, and the GEMM of
// docs/how-to/add-a-kernel.md.
#include <cmath>
#include <vector>

#include "core/random.h"
#include "kernels/hopper/hopper.cuh"
#include "kernels/hopper/launch.h"
#include "kernels/hopper/tensor_map.h"
#include "testing/abilities.h"

namespace te::kernels::hopper {
namespace {

using te::testing::TestTensor;

// --- a ring does not accept the wrong kind of wait -------------------------------------------------------------------

template <class R, class At>
concept CanAcquire = requires(R ring, At at) {
  ring.acquire(at);
};
template <class R, class At>
concept CanWait = requires(R ring, At at) {
  ring.wait(at);
};
template <class R, class S>
concept CanCommit = requires(R ring, S slot) {
  ring.commit(slot);
};
template <class R, class S>
concept CanRelease = requires(R ring, S slot) {
  ring.release(slot);
};

using Two = Ring<2>;
static_assert(CanAcquire<Two, Two::Producer> && !CanAcquire<Two, Two::Consumer> && !CanAcquire<Two, int>);
static_assert(CanWait<Two, Two::Consumer> && !CanWait<Two, Two::Producer> &&
              !CanWait<Two, Ring<3>::Consumer>);
static_assert(CanCommit<Two, Two::EmptySlot> && !CanCommit<Two, Two::FullSlot> && !CanCommit<Two, int>);
static_assert(CanRelease<Two, Two::FullSlot> && !CanRelease<Two, Two::EmptySlot> && !CanRelease<Two, int>);
static_assert(CanWait<Signal<2>, Two::Consumer> && !CanWait<Signal<2>, Ring<3>::Consumer>);

// --- rings: a loader sends numbers through both warpgroups, which change them, to one storer each -------------------

constexpr int kFills = 600;

enum class Late { none, loader, one_warpgroup, storers, all };

/// Sleeps up to two microseconds if `late`, with a duration that differs from fill to fill.
__device__ void be_late(bool late, int fill) {
  if (late) __nanosleep(static_cast<uint32_t>(fill) * 2654435761u % 2048);
}

template <int kStages>
struct RelayShared {
  int value[kStages][kConsumers], changed[kStages][kConsumers][kWarps];
  Ring<kStages> ring;
  Signal<kStages, Side::consumer> ready[kConsumers];
};

template <int kStages>
__device__ void load(RelayShared<kStages>& s, Late late) {
  typename Ring<kStages>::Producer at;
  for (int fill = 0; fill < kFills; ++fill, at.next()) {
    const auto slot = s.ring.acquire(at);
    be_late(late == Late::loader || late == Late::all, fill);
    for (int w = 0; w < kConsumers; ++w) s.value[slot.stage()][w] = fill * kConsumers + w;
    s.ring.commit(slot);
  }
}

template <int kStages>
__device__ void change(RelayShared<kStages>& s, Late late, const Thread& thread) {
  typename Ring<kStages>::Consumer at;
  for (int fill = 0; fill < kFills; ++fill, at.next()) {
    const auto slot = s.ring.wait(at);
    be_late((late == Late::one_warpgroup && thread.warpgroup == 1) || late == Late::all, fill + 1);
    __syncwarp();
    if (thread.lane != 0) continue;
    s.changed[slot.stage()][thread.warpgroup][thread.warp] = 3 * s.value[slot.stage()][thread.warpgroup];
    s.ready[thread.warpgroup].commit(slot);
  }
}

template <int kStages>
__device__ void store(RelayShared<kStages>& s, Late late, int warpgroup, int* out) {
  typename Ring<kStages>::Consumer at;
  for (int fill = 0; fill < kFills; ++fill, at.next()) {
    const auto slot = s.ring.wait(at);
    be_late(late == Late::storers || late == Late::all, fill + 2);
    s.ready[warpgroup].wait(at);
    int sum = 0;
    for (const int value : s.changed[slot.stage()][warpgroup]) sum += value;
    out[fill * kConsumers + warpgroup] = sum;
    s.ring.release(slot);
  }
}

template <int kStages>
__global__ void __launch_bounds__(kThreads, 1) relay_kernel(int* out, Late late) {
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& s = *reinterpret_cast<RelayShared<kStages>*>(memory);
  const Thread thread;
  if (threadIdx.x == 0) {
    s.ring.init(1, kConsumers);
    for (auto& of_warpgroup : s.ready) of_warpgroup.init(kWarps);
    fence_mbarrier_init();
  }
  __syncthreads();
  if (!thread.is_producer()) return change(s, late, thread);
  if (thread.index == 0) load(s, late);
  if (thread.index == kWarpSize) store(s, late, 0, out);
  if (thread.index == 2 * kWarpSize) store(s, late, 1, out);
}

std::vector<int> ints_of(const TestTensor& tensor) {
  const std::vector<uint8_t> bytes = tensor.raw();
  const int* const first = reinterpret_cast<const int*>(bytes.data());
  return {first, first + bytes.size() / sizeof(int)};
}

template <int kStages>
void expect_relayed(const Context& gpu) {
  for (const Late late : {Late::none, Late::loader, Late::one_warpgroup, Late::storers, Late::all}) {
    const TestTensor out(gpu, DType::i32, {kFills, kConsumers});
    launch_persistent<relay_kernel<kStages>, RelayShared<kStages>>(gpu, 1, out.get().template as<int>(),
                                                                   late);
    const std::vector<int> sums = ints_of(out);
    for (int i = 0; i < kFills * kConsumers; ++i)
      ASSERT_EQ(sums[i], 3 * kWarps * i) << kStages << " stages, late: " << static_cast<int>(late);
  }
}

TEST(HopperRing, PassesEveryFillOnWhicheverRoleIsLate) {
  TE_REQUIRE_ABILITY(hopper_kernels);
  const Context gpu = Context::cuda(0);
  expect_relayed<1>(gpu);
  expect_relayed<2>(gpu);
  expect_relayed<3>(gpu);
  expect_relayed<4>(gpu);
}

// --- alternating warpgroups, where each consumer skips the other's fills ---------------------------------------------

constexpr int kSteps = 200, kFillsPerStep = 5;

struct OrderedShared {
  int value[2];
  Ring<2> ring;
};

__global__ void __launch_bounds__(kThreads, 1) ordered_kernel(int* out, int late_warpgroup) {
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& s = *reinterpret_cast<OrderedShared*>(memory);
  const Thread thread;
  if (threadIdx.x == 0) {
    s.ring.init(1, kWarps);
    fence_mbarrier_init();
  }
  __syncthreads();
  if (thread.is_producer()) {
    if (thread.index != 0) return;
    Ring<2>::Producer at;
    for (int fill = 0; fill < kSteps * kFillsPerStep; ++fill, at.next()) {
      const auto slot = s.ring.acquire(at);
      s.value[slot.stage()] = fill;
      s.ring.commit(slot);
    }
    return;
  }
  const OrderedSequenceBarrier order(1, thread.warpgroup);
  Ring<2>::Consumer at;
  if (thread.warpgroup == 1) at.skip(kFillsPerStep);
  for (int step = thread.warpgroup; step < kSteps; step += kConsumers, at.skip(kFillsPerStep)) {
    be_late(thread.warpgroup == late_warpgroup, step);
    order.wait();
    for (int i = 0; i < kFillsPerStep; ++i, at.next()) {
      const auto slot = s.ring.wait(at);
      if (thread.index == 0)
        out[step * kFillsPerStep + i] = s.value[slot.stage()] * kConsumers + thread.warpgroup;
      __syncwarp();
      if (thread.lane == 0) s.ring.release(slot);
    }
    order.arrive();
  }
}

TEST(HopperOrderedSequenceBarrier, WarpgroupsAlternateAndSkipEachOthersFills) {
  TE_REQUIRE_ABILITY(hopper_kernels);
  const Context gpu = Context::cuda(0);
  for (const int late : {-1, 0, 1}) {
    const TestTensor out(gpu, DType::i32, {kSteps, kFillsPerStep});
    launch_persistent<ordered_kernel, OrderedShared>(gpu, 1, out.get().as<int>(), late);
    const std::vector<int> values = ints_of(out);
    for (int i = 0; i < kSteps * kFillsPerStep; ++i)
      ASSERT_EQ(values[i], i * kConsumers + i / kFillsPerStep % kConsumers) << "late: " << late;
  }
}

// --- the GEMM of docs/how-to/add-a-kernel.md: out [rows, 128] = a [rows, depth] b [128, depth]^T, 128 x 128 tiles ---

struct GemmShared {
  __nv_bfloat16 a[3][128 * 64], b[3][128 * 64], out[kConsumers][2][64 * 64];
  Ring<3> operands;
};
struct GemmMaps {
  CUtensorMap a, b, out;
};

__device__ void load_operands(GemmShared& s, const GemmMaps& maps, int tiles, int depth) {
  Ring<3>::Producer at;
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x)
    for (int k = 0; k < depth; k += 64, at.next()) {
      const auto slot = s.operands.acquire(at);
      s.operands.commit(slot, sizeof(s.a[0]) + sizeof(s.b[0]));
      tma_load(s.a[slot.stage()], &maps.a, s.operands.full(slot), k, tile * 128, 0);
      tma_load(s.b[slot.stage()], &maps.b, s.operands.full(slot), k, 0, 0);
    }
}

__device__ void store_tile(GemmShared& s, const GemmMaps& maps, const float (&d)[64], int tile,
                           const Thread& thread) {
  auto& rows = s.out[thread.warpgroup];
  if (thread.index == 0) bulk_wait_read();  // the previous tile has been read
  named_barrier_sync<kWarpgroup>(1 + thread.warpgroup);
  store_accumulators<128>(thread, shared_address(rows), sizeof(rows[0]),
                          [&](int i) { return pack_bf16(d[i * 2], d[i * 2 + 1]); });
  fence_proxy_async_shared();
  named_barrier_sync<kWarpgroup>(1 + thread.warpgroup);
  if (thread.index != 0) return;
  for (int c = 0; c < 2; ++c) tma_store(&maps.out, rows[c], c * 64, tile * 128 + thread.warpgroup * 64, 0);
  bulk_commit();
}

__device__ void compute(GemmShared& s, const GemmMaps& maps, int tiles, int depth, const Thread& thread) {
  Ring<3>::Consumer at;
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    float d[64] = {};
    for (int k = 0; k < depth; k += 64, at.next()) {
      const auto slot = s.operands.wait(at);
      wgmma_fence();
      mma_nt<128, 64>(d, stage_address(s.a, slot.stage()) + thread.warpgroup * kWarpgroupTileBytes, 0,
                      stage_address(s.b, slot.stage()), 0, true);
      wgmma_commit();
      wgmma_wait<0>(d);
      if (thread.lane == 0) s.operands.release(slot);
    }
    store_tile(s, maps, d, tile, thread);
  }
  if (thread.index == 0) bulk_wait();
}

__global__ void __launch_bounds__(kThreads, 1)
    small_gemm(const __grid_constant__ GemmMaps maps, int tiles, int depth) {
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& s = *reinterpret_cast<GemmShared*>(memory);
  const Thread thread;
  if (threadIdx.x == 0) {
    s.operands.init(1, kConsumerWarps);
    fence_mbarrier_init();
  }
  __syncthreads();
  if (!thread.is_producer()) return compute(s, maps, tiles, depth, thread);
  if (thread.index == 0) load_operands(s, maps, tiles, depth);
}

TEST(HopperGemm, IsExactOnSmallIntegers) {
  TE_REQUIRE_ABILITY(hopper_kernels);
  const Context gpu = Context::cuda(0);
  constexpr int64_t kRows = 128 * 300 - 40,
                    kDepth = 328;  // more tiles than blocks, partial tiles in rows and depth
  const auto small_integers = [](int64_t count, uint64_t seed) {
    std::vector<float> values = te::testing::normal_values(count, seed);
    for (float& x : values) x = std::round(x / 1.5f);
    return values;
  };
  const std::vector<float> a_values = small_integers(kRows * kDepth, 1),
                           b_values = small_integers(128 * kDepth, 2);
  TestTensor a(gpu, DType::bf16, {kRows, kDepth}), b(gpu, DType::bf16, {128, kDepth});
  const TestTensor out(gpu, DType::bf16, {kRows, 128});
  a.fill(a_values);
  b.fill(b_values);
  const int tiles = static_cast<int>(ceil_div(kRows, 128));
  const GemmMaps maps{boxes_of(a, 1, 128), boxes_of(b, 1, 128), boxes_of(out, 1, 64)};
  launch_persistent<small_gemm, GemmShared>(gpu, tiles, maps, tiles, static_cast<int>(kDepth));
  const std::vector<float> actual = out.floats();
  for (int64_t row = 0; row < kRows; row += 37)
    for (int64_t column = 0; column < 128; ++column) {
      float sum = 0.0f;
      for (int64_t k = 0; k < kDepth; ++k) sum += a_values[row * kDepth + k] * b_values[column * kDepth + k];
      ASSERT_LE(std::abs(sum), 256.0f) << "not exact in BF16";
      ASSERT_EQ(actual[row * 128 + column], sum) << row << ", " << column;
    }
}

}  // namespace
}  // namespace te::kernels::hopper
