// Order of the rows that a rank of expert parallelism has received for its experts (model/expert_dispatch.h).
//
// Each of R ranks orders the selections of its tokens by experts (permute.h, alignment 1) and sends the rows of each
// rank's experts. The receiver's rows have an order of their own: by expert, then sending rank, then token. In round r,
// its rows [r * capacity, (r + 1) * capacity) of that order arrive, by sending rank:
//
//   received  | rank 0: expert 0, expert 1 | rank 1: expert 0, expert 1 | unused |
//   rows      | expert 0: rank 0, rank 1, padding | expert 1: rank 0, rank 1, padding | unused |
//
// In a single round a token is sent once to each rank with an expert of it. Lists of tokens have the form of permute.h:
//
//   token_ranks    the ranks of each token; expert_rows() of them, with ranks as experts, orders the tokens by rank
//   token_slots    which token and slot of the rank's tokens each selection has; sent with it
//   dispatch_rows  token_source and token_rows: `source` and `row_of` of the rows of received tokens
#pragma once

#include <cstdint>

#include "core/device.h"
#include "core/tensor.h"

namespace te::kernels {

/// Rows for `capacity` received ones of `experts` experts, each of which starts and ends at a multiple of `alignment`.
int64_t dispatch_rows_capacity(int64_t capacity, int64_t experts, int64_t alignment);

/// Slots of a token on a rank: the most experts of a rank that a token selects.
int64_t token_slot_count(int64_t topk, int64_t experts_of_rank);

struct TokenRanks {
  Tensor row_of, offsets;  ///< i32 [T, topk], [E + 1] of expert_rows()
  Tensor ranks;            ///< out i32 [T, R]: column r has r, or -1 if rank r has no expert of the token
};
void token_ranks(const Context& context, const TokenRanks& args);

struct TokenSlots {
  Tensor row_of, offsets;  ///< as above
  /// i32 [T, R], [R + 1]: row_of and offsets of expert_rows() for TokenRanks::ranks, the order of tokens by rank.
  Tensor token_row_of, token_offsets;
  /// Out i32 [rows of expert_rows()]: of each selection n * token_slot_count() + slot, where the token is the n-th for
  /// the expert's rank, and slots are in the order of the rank's experts.
  Tensor slots;
};
void token_slots(const Context& context, const TokenSlots& args);

struct DispatchRows {
  Tensor counts;  ///< i32 [R, E + 1 + R + 1]: of all ranks ExpertRows::offsets, and TokenSlots::token_offsets
  int64_t first_expert = 0;  ///< of this rank
  int64_t round = 0;
  int64_t alignment = 1;
  Tensor offsets;   ///< out i32 [experts of this rank + 1]: first of `rows` of each expert, and the end
  Tensor segments;  ///< scratch i32 [experts of this rank * R, 3]
  Tensor source;    ///< out i32 [dispatch_rows_capacity()]: the received row of each row, or -1
  Tensor row_of;    ///< out i32 [capacity]: the reverse
  // Optional, in a single round:
  Tensor slots;  ///< i32 [capacity]: TokenSlots::slots of the received rows
  Tensor
      token_source;   ///< out i32, as `source`: received token * token_slot_count() + slot of each row, or -1
  Tensor token_rows;  ///< out i32 [n, token_slot_count()], n >= received tokens: the reverse
};
void dispatch_rows(const Context& context, const DispatchRows& args);

/// out[i] = x[index[i]], or 0 where the index is negative.
struct GatherValues {
  Tensor x;      ///< fp32 or i32
  Tensor index;  ///< i32 [n]
  Tensor out;    ///< [n], dtype of x
};
void gather_values(const Context& context, const GatherValues& args);

}  // namespace te::kernels
