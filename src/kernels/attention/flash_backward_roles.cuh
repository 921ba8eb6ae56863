// The parts of flash_backward.cu that move data: what lies in shared memory, the order of the work, and the four threads that
// load tiles and take results away while two warpgroups compute.
#pragma once

#include "kernels/attention/flash_tiles.cuh"

namespace te::kernels::flash {

constexpr int kKeys = 128;                                ///< of a block of keys and values
constexpr int kStages = 2;                                ///< tiles of queries in shared memory
constexpr int kTileElements = 8192;                       ///< of a block of queries: queries x head_dim
constexpr int kSumElements = kTileElements / kConsumers;  ///< of dq, of one warpgroup

template <int kHeadDim>
struct Geometry {
  static constexpr int kQueries = kTileElements / kHeadDim;   ///< of a block of them
  static constexpr int kChunks = kHeadDim / kTileColumns;     ///< tiles side by side
  static constexpr int kKeyTile = kKeys * kTileColumns;       ///< elements of a tile of keys
  static constexpr int kQueryTile = kQueries * kTileColumns;  ///< elements of a tile of queries
  static constexpr int kKeyStages = kHeadDim == 64 ? 2 : 1;   ///< blocks of keys in shared memory
  /// Of the 65,536 of a multiprocessor, for each thread that computes or moves data. With 24 of them those spill.
  static constexpr int kConsumerRegisters = kHeadDim == 64 ? 232 : 240;
  static constexpr int kMoverRegisters = kHeadDim == 64 ? 40 : 24;
  /// Statistics of a block of queries. A thread needs queries 8 g + 2 c (+ 1) of its c = lane % 4 for all g: they lie together,
  /// and those of another c in other banks.
  static constexpr int kLineOfC = kQueries / 4 + 4;
  static constexpr int kStatistics = 4 * kLineOfC;
};

/// What a warpgroup has put into its part of Shared::out.
struct Letter {
  enum Kind : int {
    kEnd,
    kSum,      ///< FP32, to be added to dq's sums
    kQueries,  ///< BF16, dq
    kKeys      ///< BF16, dk and dv
  } kind;
  int x, y, z;    ///< of the box in dqkv; kSum: z blocks of keys add before
  int64_t block;  ///< kSum: of Params::dq_sums and added
};

template <int kHeadDim>
struct Shared {
  using G = Geometry<kHeadDim>;
  __nv_bfloat16 k[G::kKeyStages][G::kChunks][G::kKeyTile];
  __nv_bfloat16 v[G::kKeyStages][G::kChunks][G::kKeyTile];
  __nv_bfloat16 q[kStages][G::kChunks][G::kQueryTile];
  __nv_bfloat16 d_o[kStages][G::kChunks][G::kQueryTile];
  __nv_bfloat16 ds[2][G::kQueries / kTileColumns][G::kKeyTile];  ///< dS^T
  __nv_bfloat16 out[kConsumers][2][G::kChunks][64 * kTileColumns];
  float lse2[kStages][G::kStatistics];
  float delta[kStages][G::kStatistics];
  // "full": what it guards may be read; "empty": it may be overwritten.
  uint64_t keys_full[G::kKeyStages], keys_empty[G::kKeyStages];
  uint64_t q_full[kStages], d_o_full[kStages], sums_full[kStages], queries_empty[kStages];
  uint64_t out_full[kConsumers], out_empty[kConsumers];
  Letter letter[kConsumers];
  int unit[G::kKeyStages];

  __device__ void init_barriers() {
    for (int i = 0; i < G::kKeyStages; ++i) {
      barrier_init(&keys_full[i], 1);
      barrier_init(&keys_empty[i], kConsumerWarps);
    }
    for (int i = 0; i < kStages; ++i) {
      barrier_init(&q_full[i], 1);
      barrier_init(&d_o_full[i], 1);
      barrier_init(&sums_full[i], 1);
      barrier_init(&queries_empty[i], kConsumerWarps);
    }
    for (int i = 0; i < kConsumers; ++i) {
      barrier_init(&out_full[i], kWarpgroup / kWarpSize);
      barrier_init(&out_empty[i], 1);
    }
    fence_barrier_init();
  }
};

struct Params {
  const float* lse2;   ///< [batch, heads, query blocks, kStatistics], base 2
  const float* delta;  ///< the same
  float*
      dq_sums;  ///< [batch, heads, query blocks, kConsumers, kSumElements], in the order of the threads' registers
  int* added;  ///< [batch, heads, query blocks, kConsumers]: blocks of keys whose part is in dq_sums
  int* next_unit;
  int num_heads, num_groups, heads_per_group, units;
  int key_blocks, query_blocks;
  float scale, scale_log2e;
};

__device__ __forceinline__ void wait_for_count(const int* count, int least) {
  int value;
  do {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(count) : "memory");
  } while (value < least);
}
__device__ __forceinline__ void count_one(int* count) {
  asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(count) : "memory");
}

/// A unit of work is a block of keys of a (sample, group); the blocks of the grid take units in order: of a group, the last
/// keys first. Its tiles: for the heads of the group, the blocks of queries that see these keys.
template <int kHeadDim>
struct Walk {
  static constexpr int kQueries = Geometry<kHeadDim>::kQueries;
  int line, keys, head, queries;  ///< line: (sample, group); head: of the group

  __device__ static int first_queries(int keys) { return keys * kKeys / kQueries; }
  __device__ void start(const Params& p, int unit) {
    line = unit / p.key_blocks;
    keys = p.key_blocks - 1 - unit % p.key_blocks;
    head = 0;
    queries = first_queries(keys);
  }
  /// False after the unit's last tile.
  __device__ bool next(const Params& p) {
    if (++queries < p.query_blocks) return true;
    queries = first_queries(keys);
    return ++head < p.heads_per_group;
  }
  __device__ bool first_of_queries() const { return before() == 0; }
  __device__ bool last_of_queries() const { return keys == 0; }
  /// Some of its queries do not see some of its keys.
  __device__ bool on_diagonal() const { return queries * kQueries < (keys + 1) * kKeys; }
  __device__ int batch(const Params& p) const { return line / p.num_groups; }
  __device__ int group(const Params& p) const { return line % p.num_groups; }
  __device__ int head_of_model(const Params& p) const { return group(p) * p.heads_per_group + head; }
  /// Of the tile's queries, among those of all heads of the batch.
  __device__ int64_t query_block(const Params& p) const {
    return (static_cast<int64_t>(line) * p.heads_per_group + head) * p.query_blocks + queries;
  }
  /// Blocks of keys that add to this dq before this one does: those behind it.
  __device__ int before() const { return queries * kQueries / kKeys - keys; }
};

/// One thread: takes units and loads their tiles.
template <int kHeadDim>
__device__ void load_tiles(Shared<kHeadDim>& s, const Params& p, const CUtensorMap* keys_map,
                           const CUtensorMap* queries_map, const CUtensorMap* d_o_map) {
  using G = Geometry<kHeadDim>;
  Walk<kHeadDim> w;
  int count = 0;
  for (int units = 0;; ++units) {
    const int unit = atomicAdd(p.next_unit, 1), b = units % G::kKeyStages;
    wait(&s.keys_empty[b], ((units / G::kKeyStages) & 1) ^ 1);
    s.unit[b] = unit;
    if (unit >= p.units) {
      arrive(&s.keys_full[b]);
      return;
    }
    w.start(p, unit);
    const int batch = w.batch(p);
    arrive_expect_bytes(&s.keys_full[b], 2 * sizeof(s.k[0]));
    for (int c = 0; c < G::kChunks; ++c) {
      const int k_column = (p.num_heads + w.group(p)) * kHeadDim + c * kTileColumns;
      load_box(s.k[b][c], keys_map, &s.keys_full[b], k_column, w.keys * kKeys, batch);
      load_box(s.v[b][c], keys_map, &s.keys_full[b], k_column + p.num_groups * kHeadDim, w.keys * kKeys,
               batch);
    }
    do {
      const int stage = count % kStages;
      wait(&s.queries_empty[stage], ((count / kStages) & 1) ^ 1);
      const int column = w.head_of_model(p) * kHeadDim, row = w.queries * G::kQueries;
      const int64_t at = w.query_block(p) * G::kStatistics;
      arrive_expect_bytes(&s.q_full[stage], sizeof(s.q[0]) + sizeof(s.lse2[0]));
      for (int c = 0; c < G::kChunks; ++c)
        load_box(s.q[stage][c], queries_map, &s.q_full[stage], column + c * kTileColumns, row, batch);
      load_bytes(s.lse2[stage], p.lse2 + at, sizeof(s.lse2[0]), &s.q_full[stage]);
      arrive_expect_bytes(&s.d_o_full[stage], sizeof(s.d_o[0]) + sizeof(s.delta[0]));
      for (int c = 0; c < G::kChunks; ++c)
        load_box(s.d_o[stage][c], d_o_map, &s.d_o_full[stage], column + c * kTileColumns, row, batch);
      load_bytes(s.delta[stage], p.delta + at, sizeof(s.delta[0]), &s.d_o_full[stage]);
      ++count;
    } while (w.next(p));
  }
}

/// One thread: waits until the sums of dq that a last tile completes hold all others.
template <int kHeadDim>
__device__ void watch_sums(Shared<kHeadDim>& s, const Params& p) {
  using G = Geometry<kHeadDim>;
  Walk<kHeadDim> w;
  int count = 0;
  for (int units = 0;; ++units) {
    const int b = units % G::kKeyStages;
    wait(&s.keys_full[b], (units / G::kKeyStages) & 1);
    const int unit = s.unit[b];
    if (unit >= p.units) return;
    w.start(p, unit);
    do {
      const int stage = count % kStages;
      wait(&s.queries_empty[stage], ((count / kStages) & 1) ^ 1);
      if (w.last_of_queries() && !w.first_of_queries()) {
        for (int i = 0; i < kConsumers; ++i)
          wait_for_count(p.added + w.query_block(p) * kConsumers + i, w.before());
        fence_proxies();
      }
      arrive(&s.sums_full[stage]);
      ++count;
    } while (w.next(p));
  }
}

/// One thread for each of the warpgroups that compute: takes its results from shared memory to where they belong. Sums are
/// added in the order of the keys, from the last: the count tells whose turn it is.
template <int kHeadDim>
__device__ void deliver(Shared<kHeadDim>& s, const Params& p, const CUtensorMap* map, int warpgroup) {
  using G = Geometry<kHeadDim>;
  for (int count = 0;; ++count) {
    wait(&s.out_full[warpgroup], count & 1);
    const Letter letter = s.letter[warpgroup];
    auto& out = s.out[warpgroup];
    int* added = nullptr;
    if (letter.kind == Letter::kEnd) return;
    if (letter.kind == Letter::kSum) {
      added = p.added + letter.block;
      float* const sums = p.dq_sums + letter.block * kSumElements;
      if (letter.z > 0) {
        wait_for_count(added, letter.z);
        fence_proxies();
        add_floats(sums, out, kSumElements * sizeof(float));
      } else {
        store_bytes(sums, out, kSumElements * sizeof(float));
      }
    } else if (letter.kind == Letter::kQueries) {
      store_box(map, out[0][0], letter.x, letter.y, letter.z);
    } else {
      for (int c = 0; c < G::kChunks; ++c) {
        store_box(map, out[0][c], letter.x + c * kTileColumns, letter.y, letter.z);
        store_box(map, out[1][c], letter.x + p.num_groups * kHeadDim + c * kTileColumns, letter.y, letter.z);
      }
    }
    commit_stores();
    wait_for_sources();
    arrive(&s.out_empty[warpgroup]);
    if (added != nullptr) {
      wait_for_stores();
      fence_proxies();
      count_one(added);
    }
  }
}

}  // namespace te::kernels::flash
