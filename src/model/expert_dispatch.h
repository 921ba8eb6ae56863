// Expert parallelism (GShard, arXiv 2006.16668): the ranks of a group divide the experts of each layer, and exchange
// tokens, so that each expert gets the tokens of all of them.
//
//   sent       | e0 e1 | e2 e3 |    tokens of a rank: once for each rank with one of their experts, by rank
//                     \    /        dispatch: all-to-all
//   received   | rank 0 | rank 1 |  tokens by sending rank
//   rows       | e0 e0  | e1 e1  |  copies by expert, sending rank and token; aligned (kernels/moe/dispatch.h)
//
// Combine: the experts' rank sums the results of each received token in FP32 in the order of the experts, rounds once
// and returns one row; the token's rank sums the rows of the ranks in FP32 in their order. Results already have the
// router's probabilities (kernels/moe/expert_activation.h). The backward pass mirrors this: gradients are dispatched,
// gradients of the inputs return. The inputs are dispatched again, as they would need too much memory. Probabilities,
// their gradients, numbers for dropout and slots of tokens are sent per selection of an expert.
//
// Where fc1's input is FP8 with one scale per expert, the ranks can send it as FP8, and dy where fc2's grad_output is.
// Both are copies of tokens, so the sender's codes are the receiver's (kernels/moe/send_fp8.h), but a row per selection
// is sent, as experts have different scales: sends_fp8_selections() tells if that is less data. The scale of an expert
// depends on the rows of all ranks, so the ranks first gather the amaxes of their rows and the scales of their experts.
// Rows are sent in high precision if an adapter or a BF16 GEMM reads them, if their columnwise layout has scales of its
// own, which cover rows of all ranks (rowwise, blockwise), and in runs with memory for both precisions (fp8_from_step).
// Results and dx come from GEMMs and return in high precision.
//
// Memory is planned for `capacity` received rows: parallel.moe_dispatch_factor times the rows of a balanced load. If a
// rank gets more, all ranks of the group run several rounds, in each of which a rank receives its next `capacity` rows
// in the order of its experts' rows. Then a row per selection is sent and returns, FP8 where possible. Nothing is
// dropped or allocated. A round's activations are not kept if there are several: the backward pass computes them again.
//
// Before the rows, the ranks gather the numbers of their rows per expert and of their tokens per rank, from which each
// computes the sizes of all messages and the number of rounds. The host waits for these numbers once per layer and
// microbatch, while the device computes the shared expert's up projection; the backward pass knows them.
//
// The order of rows, and with it every sum, depends on the routing only, so runs repeat bitwise. Outputs and gradients
// of tokens differ from one rank's by a rounding per rank. Weight gradients sum the tokens of all ranks in one GEMM
// instead of a GEMM per rank and a reduction; current scales of several rounds differ.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/memory_plan.h"
#include "kernels/moe/dispatch.h"
#include "kernels/quantize/fp8_output.h"
#include "model/dimensions.h"
#include "model/layer_steps.h"
#include "parallel/communicator.h"

namespace te::model {

/// The mean share of tokens with at least one of their topk experts on a certain rank, if all choices are equally
/// likely: 1 - C(experts - experts / ranks, topk) / C(experts, topk).
double expected_token_share(int64_t experts, int64_t topk, int64_t ranks);
/// Where rows can be FP8: true if they are sent per selection as FP8, false if each token is sent once to a rank as
/// `dtype`. `factor`: parallel.moe_dispatch_factor.
bool sends_fp8_selections(int64_t topk, int64_t ranks, DType dtype, double factor);

/// The ranks of expert parallelism and their communication, which all layers share.
class ExpertRanks {
 public:
  /// The group must outlive the object.
  ExpertRanks(parallel::Communicator& group, double dispatch_factor)
      : group_(group), dispatch_factor_(dispatch_factor) {}
  int rank() const { return group_.rank(); }
  int size() const { return group_.size(); }
  parallel::Communicator& group() const { return group_; }
  double dispatch_factor() const { return dispatch_factor_; }

  /// All operations of the group run on a CUDA stream of their own.
  struct Stream {
    explicit Stream(const Context& of) : context(of.side(true)), ready(of), copied(of), done(of) {}
    Context context;
    Event ready, copied, done;  ///< the data to be sent; tokens, to the sent rows; the received data
    HostBuffer counts;
  };
  Stream& stream(const Context& context) {
    if (!stream_) stream_.emplace(context);
    return *stream_;
  }

 private:
  parallel::Communicator& group_;
  double dispatch_factor_;
  std::optional<Stream> stream_;
};

/// The dispatch of one layer.
class ExpertDispatch {
 public:
  /// `alignment`: of the rows of each expert. `numbers`: selections have numbers, for dropout of adapters.
  ExpertDispatch(std::string name, ExpertRanks& ranks, const Dimensions& dims, int64_t experts, int64_t topk,
                 int64_t alignment, bool numbers);

  /// What a microbatch saves.
  struct Routing {
    PlannedTensor counts;       ///< i32 [ranks, experts + 1 + ranks + 1]: DispatchRows::counts
    std::vector<int32_t> host;  ///< the same
    int rounds = 0;
  };
  void plan_routing(MemoryPlan& plan, Routing& routing) const;
  /// `fp8_x`, `fp8_dy`: rows can be sent as FP8, and memory for rows in high precision is not planned.
  void plan_scratch(MemoryPlan& plan, bool fp8_x, bool fp8_dy);

  /// Selections.
  int64_t sent_rows() const { return dims_.tokens * topk_; }
  /// Rows of the experts of this rank in a round, at most.
  int64_t rows() const;

  /// What the rows that a pass sends are copies of.
  struct SentTokens {
    Tensor values;                    ///< [tokens, hidden]; with `operand` until the last round
    kernels::Fp8Output operand = {};  ///< as FP8: of this rank's experts (ExpertLinear::sent_input)
  };
  struct Sent {
    Tensor source, row_of;  ///< of the selections
    SentTokens x, dy;       ///< without dy: no gradients
    bool gradients() const { return static_cast<bool>(dy.values); }
  };

  // --- a pass, in this order ---
  /// Orders the tokens by ranks. row_of, offsets: i32 [tokens, topk], [experts + 1] of the selections.
  void order_tokens(const Context& context, const Tensor& row_of, const Tensor& offsets,
                    const Routing& routing) const;
  /// Gathers the numbers of rows and tokens.
  void count(const Context& context, const Tensor& offsets, Routing& routing) const;
  /// Copies probabilities and numbers (if any) [tokens, topk] to the sent selections, in the order of `source`.
  void pack(const Context& context, const Tensor& probs, const Tensor& numbers, const Tensor& source) const;
  /// Copies dy [tokens, hidden] to the sent rows. With memory for FP8, they are written when a round starts.
  void pack_gradients(const Context& context, const Routing& routing, const Tensor& dy,
                      const Tensor& source) const;
  /// The host waits for count().
  void wait_for_counts(const Context& context, Routing& routing) const;
  /// After pack(): copies the tokens of x, unless selections are FP8, and starts the first round on another CUDA
  /// stream.
  void start(const Context& context, const Routing& routing, const Sent& sent) const {
    launch(context, routing, 0, sent);
  }
  /// Received rows, of tokens or selections.
  struct Received {
    Tensor values;  ///< [n, hidden]; until send_back()
    Tensor source;  ///< i32 [rows]: n * topk + slot of each row of the experts, or -1
    int64_t topk = 1;
  };
  /// A round's rows, copies of received ones. No more than the round has: at most rows(), at least one alignment.
  struct Rows {
    Tensor offsets;  ///< i32 [own experts + 1]
    Tensor source;   ///< i32 [rows]: index in probs and numbers, or -1
    Tensor probs;    ///< fp32 [capacity, 1]
    Received x, dy;  ///< dy, if sent
    Tensor numbers;  ///< i32 [capacity, 1], or empty
  };
  /// Waits for a round, after starting it unless it is the first. `sent`: as in start().
  Rows receive(const Context& context, const Routing& routing, int round, const Sent& sent) const;
  /// For the gradients of Rows::probs, which the next send_back() returns.
  const Tensor& d_probs() const { return received_d_probs_; }
  /// Returns a round's results, y or dx [rows, hidden], to the ranks of the tokens.
  void send_back(const Context& context, const Routing& routing, int round, const Tensor& rows,
                 bool gradients) const;
  /// After the last round: the results, which a token sums (kernels::Unpermute), and the gradients of probabilities,
  /// d_probs [tokens, topk].
  struct Returned {
    Tensor rows, row_of;
  };
  Returned returned(const Routing& routing, const Tensor& row_of) const;
  void returned_d_probs(const Context& context, const Tensor& row_of, const Tensor& d_probs) const;

 private:
  enum class Buffer : uint8_t {
    sent,
    received,
    sent_gradients,
    received_gradients,
    sent_probs,
    received_probs,
    sent_d_probs,
    received_d_probs,
    sent_numbers,
    received_numbers,
    offsets,
    segments,
    source,
    row_of,
    ranges,
    scale_messages,
    amax,
    scales,
    sent_counts,
    token_ranks,
    token_row_of,
    token_source,
    sent_slots,
    received_slots,
    received_source,
    received_rows
  };
  int64_t own_experts() const { return experts_ / ranks_.size(); }
  int64_t slots() const { return kernels::token_slot_count(topk_, own_experts()); }
  int64_t fields() const { return experts_ + ranks_.size() + 2; }
  /// This rank's parts of Routing::counts: of experts, of ranks.
  Tensor own_offsets(const Routing& routing) const;
  Tensor own_token_offsets(const Routing& routing) const;
  /// Rows of a rank that are for experts [first, first + experts), in all rounds.
  parallel::RowRange rows_for(const Routing& routing, int from, int64_t first, int64_t experts = 1) const;
  /// The number of such rows of all ranks.
  int64_t count_rows_for(const Routing& routing, int64_t first, int64_t experts = 1) const;
  /// Rows of each rank that arrive at rank `to` in a round.
  parallel::RowRanges ranges_to(const Routing& routing, int to, int round) const;
  /// The rows of a round that this rank sends to each rank, and the received rows of each.
  struct Exchange {
    parallel::RowRanges sent, received;
  };
  Exchange exchange(const Routing& routing, int round) const;
  /// The same for tokens, in a single round.
  Exchange token_exchange(const Routing& routing) const;
  /// Rows of the experts of this rank in a round, with padding: the last of Rows::offsets, or one alignment.
  int64_t rows_in(const Routing& routing, int round) const;
  int64_t first_token(const Routing& routing, int from, int to) const {
    return routing.host[static_cast<size_t>(from * fields() + experts_ + 1 + to)];
  }
  int64_t sent_tokens(const Routing& routing, int from) const {
    return first_token(routing, from, ranks_.size());
  }
  int64_t received_tokens(const Routing& routing, int to) const;
  void launch(const Context& context, const Routing& routing, int round, const Sent& sent) const;
  int count_rounds(const Routing& routing) const;
  /// Whether each token of x, or dy, is sent once to a rank.
  bool sends_tokens(const Routing& routing, bool dy) const {
    return routing.rounds == 1 && !(fp8_selections_ && (dy ? fp8_dy_ : fp8_x_));
  }
  /// Memory of rows in high precision. With memory for FP8, of dy only tokens fit, after the tokens of x.
  struct RowMemory {
    Tensor sent, received;
  };
  RowMemory row_memory(const Routing& routing, bool dy) const;
  void copy_rows(const Context& context, const Routing& routing, bool dy, const Tensor& x,
                 const Tensor& source) const;
  void send(const Context& context, const Routing& routing, int round, const Exchange& rows, const Sent& sent,
            bool dy) const;
  Received received(const Context& context, const Routing& routing, const Sent& sent, bool dy) const;
  /// Memory of rows that are sent as FP8. x and dy are in memory of sent and received rows, which have at least two
  /// bytes per value; without x as FP8, dy has memory of its own.
  struct Fp8Memory {
    Tensor sent, received;   ///< FP8 [n, hidden]
    int64_t pitch;           ///< rows of `sent` per sent row
    bool second;             ///< after the rows of x
    int64_t first_received;  ///< row
  };
  Fp8Memory fp8_memory(bool dy, DType format) const;
  void send_fp8(const Context& stream, const Exchange& rows, const Sent& sent, bool dy) const;
  Tensor sent_counts_of(bool dy) const;
  void count_fp8(const Context& context, const SentTokens& tokens, bool dy) const;

  std::string name_;
  ExpertRanks& ranks_;
  Dimensions dims_;
  int64_t experts_, topk_, alignment_, capacity_;
  bool numbers_, fp8_selections_, fp8_x_ = false, fp8_dy_ = false;
  // Scratch. Sent rows [sent_rows(), hidden] also have the returned results, received rows [capacity, hidden] the
  // results that are sent back. Tokens need fewer rows than selections.
  PlannedTensor sent_, received_, sent_gradients_, received_gradients_;
  PlannedTensor sent_probs_, received_probs_;              ///< fp32 [sent_rows(), 1], [capacity, 1]
  PlannedTensor sent_d_probs_, received_d_probs_;          ///< likewise
  PlannedTensor sent_numbers_, received_numbers_;          ///< likewise, i32
  PlannedTensor offsets_, segments_, source_, row_of_;     ///< kernels::DispatchRows
  PlannedTensor ranges_, scale_messages_, amax_, scales_;  ///< kernels/moe/send_fp8.h
  PlannedTensor sent_counts_;                              ///< i64 [2, ranks, experts, 2]: of x and dy
  // Tokens in a single round (kernels/moe/dispatch.h).
  PlannedTensor token_ranks_, token_row_of_;       ///< i32 [tokens, ranks]
  PlannedTensor token_source_;                     ///< i32 [tokens * ranks, 1]
  PlannedTensor sent_slots_, received_slots_;      ///< i32 [sent_rows(), 1], [capacity, 1]
  PlannedTensor received_source_, received_rows_;  ///< token_source, token_rows of kernels::DispatchRows
};

}  // namespace te::model
