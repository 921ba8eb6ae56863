// Rows of experts that the sending ranks of expert parallelism quantize (model/expert_dispatch.h). Bytes, scales and
// state equal quantize_experts() for the rows of all ranks. The steps of a round (dispatch.h):
//
//   sent_ranges             the rows that this rank sends to each expert
//   sent_amax               their amaxes, which the ranks gather with the scales of their experts
//   finalize_expert_scales  the scales of all experts, and the state of this rank's experts
//   quantize_sent           the values, which are sent
//   order_received          both layouts of the received values
//   count_sent              the counters of this rank's experts, from the counts of all senders
#pragma once

#include <cstdint>

#include "core/device.h"
#include "core/tensor.h"
#include "kernels/quantize/fp8_output.h"

namespace te::kernels {

struct SentRanges {
  Tensor counts;  ///< as in DispatchRows
  int64_t rank = 0, round = 0, capacity = 0;
  /// Out i32 [E, 4]: first and end of the sent rows of each expert in the round; of all experts of its rank the first
  /// row and the number of rows.
  Tensor ranges;
};
void sent_ranges(const Context& context, const SentRanges& args);

struct SentAmax {
  Tensor x;       ///< [T, cols] fp32 or bf16
  Tensor row_of;  ///< i32 [T, topk] of expert_rows() without alignment
  Tensor ranges;
  Tensor amax;  ///< fp32 [E]: updated with max |x| of the rows of each expert, as Fp8Output::amax
};
void sent_amax(const Context& context, const SentAmax& args);

struct FinalizeExpertScales {
  /// fp32 [R, E + E / R]: of each rank, amaxes of its rows and Fp8Output::scale of its experts.
  Tensor gathered;
  int64_t rank = 0;  ///< this one
  Fp8Output out;     ///< of this rank's experts, without counts; gives the format, values are not written
  Tensor amax;       ///< scratch fp32 [E]
  Tensor scale;      ///< out fp32 [E]
};
void finalize_expert_scales(const Context& context, const FinalizeExpertScales& args);

struct QuantizeSent {
  Tensor x;       ///< [T, cols] fp32 or bf16
  Tensor source;  ///< i32 [sent rows] of expert_rows()
  int64_t topk = 1;
  Tensor ranges;
  Tensor scale;  ///< fp32 [E]
  /// Out FP8 [n, cols]. The rows for a rank start at `pitch` times their first row; with `second`, after as many rows.
  Tensor rows;
  int64_t pitch = 1;
  bool second = false;
  Tensor counts;  ///< optional i64 [E, 2]: saturated and underflowed values are added (Fp8Counters)
};
void quantize_sent(const Context& context, const QuantizeSent& args);

struct OrderReceived {
  Tensor x;        ///< FP8 [n, cols]
  Tensor source;   ///< i32 [rows] of dispatch_rows()
  Tensor offsets;  ///< i32 [experts + 1]; on a GPU multiples of 16. Rows after the last are not written
  /// Out FP8 [rows, cols] and [cols, rows] in blocks of rows (row_blocks.h); one may be empty.
  Tensor rowwise, columnwise;
};
void order_received(const Context& context, const OrderReceived& args);

struct CountSent {
  Tensor counts;   ///< i64 [R, E, 2]: QuantizeSent::counts of all ranks
  Tensor offsets;  ///< as above
  int64_t first_expert = 0;
  int64_t cols = 0;
  Fp8Counters* counters = nullptr;  ///< [experts of this rank]
};
void count_sent(const Context& context, const CountSent& args);

}  // namespace te::kernels
