// Data movement of flash_backward.cu: layout of shared memory, order of the tasks, and the four producer threads that
// load tiles and store results while two warpgroups compute.
#pragma once

#include "kernels/attention/flash_attention.h"
#include "kernels/hopper/hopper.cuh"

namespace te::kernels::flash {

using namespace hopper;

constexpr float kInfinity = __builtin_huge_valf();
constexpr int kKeys = cuda::kFlashKeys;                   ///< keys and values per block
constexpr int kStages = 2;                                ///< tiles of queries in shared memory
constexpr int kTileElements = 8192;                       ///< per block of queries: queries x head_dim
constexpr int kSumElements = kTileElements / kConsumers;  ///< of dq, per warpgroup

template <int kHeadDim>
struct Geometry {
  static constexpr int kQueries = kTileElements / kHeadDim;   ///< queries per block
  static constexpr int kChunks = kHeadDim / kTileColumns;     ///< tiles per row
  static constexpr int kKeyTile = kKeys * kTileColumns;       ///< elements of a tile of keys
  static constexpr int kQueryTile = kQueries * kTileColumns;  ///< elements of a tile of queries
  static constexpr int kKeyStages = kHeadDim == 64 ? 2 : 1;   ///< blocks of keys in shared memory
  /// Registers per consumer and producer thread, out of 65,536 per SM. With 24, producers spill for head_dim 64.
  static constexpr int kConsumerRegisters = kHeadDim == 64 ? 232 : 240;
  static constexpr int kProducerRegisters = kHeadDim == 64 ? 40 : 24;
  /// Statistics of a block of queries. For its c = lane % 4, a thread needs queries 8 g + 2 c (+ 1) for all g; these
  /// are contiguous, and those of another c are in different banks.
  static constexpr int kLineOfC = kQueries / 4 + 4;
  static constexpr int kStatistics = 4 * kLineOfC;
};

/// Describes what a warpgroup has written to its part of Shared::out.
struct Message {
  enum Kind : int {
    kEnd,
    kSum,      ///< FP32, to be added to the sums of dq
    kQueries,  ///< BF16, dq
    kKeys      ///< BF16, dk and dv
  } kind;
  int x, y, z;  ///< of the box; kSum: z blocks of keys add before this one
  int block;    ///< kSum: index in Params::dq_sums and added
};

template <int kHeadDim>
struct Shared {
  using G = Geometry<kHeadDim>;
  __nv_bfloat16 k[G::kKeyStages][G::kChunks][G::kKeyTile];
  __nv_bfloat16 v[G::kKeyStages][G::kChunks][G::kKeyTile];
  __nv_bfloat16 q[kStages][G::kChunks][G::kQueryTile];
  __nv_bfloat16 d_o[kStages][G::kChunks][G::kQueryTile];
  __nv_bfloat16 ds[kStages][G::kQueries / kTileColumns][G::kKeyTile];  ///< dS^T
  __nv_bfloat16 out[kConsumers][2][G::kChunks][64 * kTileColumns];
  float lse2[kStages][G::kStatistics];
  float delta[kStages][G::kStatistics];
  Ring<G::kKeyStages> keys;  ///< k, v and task
  Ring<kStages> queries;     ///< q and lse2, and the tensors of the signals
  Signal<kStages> d_o_ready, sums_ready;
  Ring<1> results[kConsumers];  ///< out and message
  Message message[kConsumers];
  int task[G::kKeyStages];

  __device__ void init_barriers() {
    keys.init(1, kConsumerWarps);
    queries.init(1, kConsumerWarps);
    d_o_ready.init(1);
    sums_ready.init(1);
    for (auto& of_warpgroup : results) of_warpgroup.init(kWarps, 1);
    fence_mbarrier_init();
  }
};

struct Params {
  const float* lse2;   ///< [batch, heads, query blocks, kStatistics], base 2
  const float* delta;  ///< the same
  /// [batch, heads, query blocks, kConsumers, kSumElements], in the order of the threads' registers.
  float* dq_sums;
  int* added;  ///< [batch, heads, query blocks, kConsumers]: blocks of keys that dq_sums contains
  int* next_task;
  int num_groups, heads_per_group, tasks;
  int key_blocks, query_blocks;
  int key_column;  ///< column of the first key head
  float scale, scale_log2e;
  // Only if queries have first keys or form a range (kBounded):
  const int4* visible_queries;  ///< [batch, key blocks]: a VisibleQueries and a 0
  const int* first_keys;        ///< [batch, query blocks x their queries]
  int first_block;              ///< first block of queries in the sequence
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

/// A task is a block of keys of a (sample, group). The blocks of the grid process tasks in order; those of a group
/// start with the last keys. A task's tiles are the query blocks that see its keys, for all heads of the group. Query
/// blocks are numbered in the sequence, of which the call may compute a range.
template <int kHeadDim, bool kBounded>
struct TileScheduler {
  static constexpr int kQueries = Geometry<kHeadDim>::kQueries;
  int sample_group, keys, head, queries;  ///< head: within the group
  VisibleQueries visible_queries;         ///< kBounded

  __device__ int first_queries(const Params& p) const {
    const int diagonal = keys * kKeys / kQueries;
    return kBounded ? max(diagonal, p.first_block) : diagonal;
  }
  __device__ void start(const Params& p, int task) {
    sample_group = task / p.key_blocks;
    keys = p.key_blocks - 1 - task % p.key_blocks;
    head = 0;
    queries = first_queries(p);
    if constexpr (kBounded) {
      const int4 seen = __ldg(p.visible_queries + batch(p) * p.key_blocks + keys);
      visible_queries = {seen.x, seen.y, seen.z};
    }
  }
  /// Whether a task that has just started has no queries: with a range, possibly none of its queries sees the keys.
  __device__ bool is_empty() const { return kBounded && queries >= visible_queries.end; }
  /// Returns false after the task's last tile.
  __device__ bool next(const Params& p) {
    if (++queries < (kBounded ? visible_queries.end : p.query_blocks)) return true;
    queries = first_queries(p);
    return ++head < p.heads_per_group;
  }
  __device__ bool first_of_queries() const { return before() == 0; }
  /// Whether the tile's queries see no earlier block of keys.
  __device__ bool last_of_queries() const {
    return kBounded ? queries >= visible_queries.end_below : keys == 0;
  }
  /// Whether causality hides some of the keys from some of the queries.
  __device__ bool on_diagonal() const { return queries * kQueries < (keys + 1) * kKeys; }
  /// Whether first keys hide some of the keys from some of the queries.
  __device__ bool on_bound() const { return queries >= visible_queries.clear_end; }
  __device__ int batch(const Params& p) const { return sample_group / p.num_groups; }
  __device__ int group(const Params& p) const { return sample_group % p.num_groups; }
  __device__ int head_of_model(const Params& p) const { return group(p) * p.heads_per_group + head; }
  /// Index of the tile's queries within the call.
  __device__ int block_of_call(const Params& p) const { return kBounded ? queries - p.first_block : queries; }
  /// Index of the tile's queries over all heads of the batch.
  __device__ int query_block(const Params& p) const {
    return (sample_group * p.heads_per_group + head) * p.query_blocks + block_of_call(p);
  }
  /// Number of key blocks that add to this dq earlier: those after this one.
  __device__ int before() const { return queries * kQueries / kKeys - keys; }
};

/// Producer thread: fetches tasks and loads their tiles.
template <int kHeadDim, bool kBounded>
__device__ void load_tiles(Shared<kHeadDim>& s, const Params& p, const CUtensorMap* keys_map,
                           const CUtensorMap* queries_map, const CUtensorMap* d_o_map) {
  using G = Geometry<kHeadDim>;
  TileScheduler<kHeadDim, kBounded> w;
  Ring<kStages>::Producer tile;
  const auto load_keys = [&](auto slot) {
    const int batch = w.batch(p), k_column = p.key_column + w.group(p) * kHeadDim;
    s.keys.commit(slot, 2 * sizeof(s.k[0]));
    for (int c = 0; c < G::kChunks; ++c) {
      const int column = k_column + c * kTileColumns;
      tma_load(s.k[slot.stage()][c], keys_map, s.keys.full(slot), column, w.keys * kKeys, batch);
      tma_load(s.v[slot.stage()][c], keys_map, s.keys.full(slot), column + p.num_groups * kHeadDim,
               w.keys * kKeys, batch);
    }
  };
  const auto load_queries = [&](auto slot, auto& ring, auto& tensor, auto& statistics, const CUtensorMap* map,
                                const float* from) {
    ring.commit(slot, sizeof(tensor[0]) + sizeof(statistics[0]));
    for (int c = 0; c < G::kChunks; ++c)
      tma_load(tensor[slot.stage()][c], map, ring.full(slot),
               w.head_of_model(p) * kHeadDim + c * kTileColumns, w.block_of_call(p) * G::kQueries,
               w.batch(p));
    bulk_load(statistics[slot.stage()], from + int64_t{w.query_block(p)} * G::kStatistics,
              sizeof(statistics[0]), ring.full(slot));
  };
  for (typename Ring<G::kKeyStages>::Producer at;; at.next()) {
    int task;
    do {
      task = atomicAdd(p.next_task, 1);
      w.start(p, min(task, p.tasks - 1));
    } while (w.is_empty() && task < p.tasks);
    const auto keys = s.keys.acquire(at);
    s.task[keys.stage()] = task;
    if (task >= p.tasks) {
      s.keys.commit(keys);
      const auto queries = s.queries.acquire(tile);  // dummy stage that Backward::run waits for
      s.queries.commit(queries);
      s.d_o_ready.commit(queries);
      return;
    }
    load_keys(keys);
    do {
      const auto queries = s.queries.acquire(tile);
      load_queries(queries, s.queries, s.q, s.lse2, queries_map, p.lse2);
      load_queries(queries, s.d_o_ready, s.d_o, s.delta, d_o_map, p.delta);
      tile.next();
    } while (w.next(p));
  }
}

/// Producer thread: waits until the sums of dq that a last tile completes contain all other parts.
template <int kHeadDim, bool kBounded>
__device__ void watch_sums(Shared<kHeadDim>& s, const Params& p) {
  TileScheduler<kHeadDim, kBounded> w;
  Ring<kStages>::Producer tile;
  for (typename Ring<Geometry<kHeadDim>::kKeyStages>::Consumer at;; at.next()) {
    const int task = s.task[s.keys.wait(at).stage()];
    if (task >= p.tasks) return;
    w.start(p, task);
    do {
      const auto queries = s.queries.acquire(tile);
      if (w.last_of_queries() && !w.first_of_queries()) {
        for (int i = 0; i < kConsumers; ++i)
          wait_for_count(p.added + w.query_block(p) * kConsumers + i, w.before());
        fence_proxy_async_global();
      }
      s.sums_ready.commit(queries);
      tile.next();
    } while (w.next(p));
  }
}

/// Producer thread for one consumer warpgroup: stores its results from shared memory. Sums are added in the order of
/// the keys, from the last one; a counter tracks the order.
template <int kHeadDim>
__device__ void store_results(Shared<kHeadDim>& s, const Params& p, const CUtensorMap* queries_map,
                              const CUtensorMap* keys_map, int warpgroup) {
  auto& out = s.out[warpgroup];
  for (Ring<1>::Consumer at;; at.next()) {
    const auto slot = s.results[warpgroup].wait(at);
    const Message message = s.message[warpgroup];
    int* added = nullptr;
    if (message.kind == Message::kEnd) return;
    if (message.kind == Message::kSum) {
      added = p.added + message.block;
      float* const sums = p.dq_sums + int64_t{message.block} * kSumElements;
      if (message.z > 0) {
        wait_for_count(added, message.z);
        fence_proxy_async_global();
        bulk_add(sums, out, kSumElements * sizeof(float));
      } else {
        bulk_store(sums, out, kSumElements * sizeof(float));
      }
    } else if (message.kind == Message::kQueries) {
      tma_store(queries_map, out[0][0], message.x, message.y, message.z);
    } else {
      for (int c = 0; c < Geometry<kHeadDim>::kChunks; ++c) {
        const int column = message.x + c * kTileColumns;
        tma_store(keys_map, out[0][c], column, message.y, message.z);
        tma_store(keys_map, out[1][c], column + p.num_groups * kHeadDim, message.y, message.z);
      }
    }
    bulk_commit();
    bulk_wait_read();
    s.results[warpgroup].release(slot);
    if (added != nullptr) {
      bulk_wait();
      fence_proxy_async_global();
      count_one(added);
    }
  }
}

}  // namespace te::kernels::flash
