// Order of the rows that a rank of expert parallelism has received for its experts (model/expert_dispatch.h).
//
// Each of R ranks orders the selections of its tokens by experts (permute.h, alignment 1) and sends the rows of each
// rank's experts. The receiver's rows have an order of their own: by expert, then sending rank, then token. In round r,
// its rows [r * capacity, (r + 1) * capacity) of that order arrive, by sending rank:
//
//   received  | rank 0: expert 0, expert 1 | rank 1: expert 0, expert 1 | unused |
//   rows      | expert 0: rank 0, rank 1, padding | expert 1: rank 0, rank 1, padding | unused |
#pragma once

#include <cstdint>

#include "core/device.h"
#include "core/tensor.h"

namespace te::kernels {

/// Rows for `capacity` received ones of `experts` experts, each of which starts and ends at a multiple of `alignment`.
int64_t dispatch_rows_capacity(int64_t capacity, int64_t experts, int64_t alignment);

struct DispatchRows {
  Tensor counts;             ///< i32 [R, E + 1]: ExpertRows::offsets of all ranks
  int64_t first_expert = 0;  ///< of this rank
  int64_t round = 0;
  int64_t alignment = 1;
  Tensor offsets;   ///< out i32 [experts of this rank + 1]: first of `rows` of each expert, and the end
  Tensor segments;  ///< scratch i32 [experts of this rank * R, 3]
  Tensor source;    ///< out i32 [dispatch_rows_capacity()]: the received row of each row, or -1
  Tensor row_of;    ///< out i32 [capacity]: the reverse
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
