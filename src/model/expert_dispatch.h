// Expert parallelism (GShard, arXiv 2006.16668): the ranks of a group divide the experts of each layer, and exchange
// tokens, so that each expert gets the tokens of all of them.
//
//   rank 0's tokens   | e0 e1 | e2 e3 |    sent rows: one per selection, by expert (kernels/moe/permute.h)
//   rank 1's tokens   | e0 e1 | e2 e3 |
//                          \    /          dispatch: all-to-all
//   rank 0 receives   | e0 e1 | e0 e1 |    by sending rank
//   rank 0's experts  | e0 e0 | e1 e1 |    by expert, sending rank and token; aligned (kernels/moe/dispatch.h)
//
// Where fc1's input is FP8 with one scale per expert, the ranks send it as FP8, and dy where fc2's grad_output is. Both
// are copies of tokens, so the sender's codes are the receiver's (kernels/moe/send_fp8.h). The scale of an expert
// depends on the rows of all ranks, so the ranks first gather the amaxes of their rows and the scales of their experts.
// Rows are sent in high precision if an adapter or a BF16 GEMM reads them, if their columnwise layout has scales of its
// own, which cover rows of all ranks (rowwise, blockwise), and in runs with memory for both precisions (fp8_from_step).
// Results and dx come from GEMMs and return in high precision.
//
// The experts' results return the same way to the places of the sent rows (combine), where each token sums its rows in
// the order of one rank. The backward pass mirrors this: gradients are dispatched, gradients of the inputs return. The
// inputs are dispatched again, as they would need as much memory as topk copies of all tokens.
//
// Memory is planned for `capacity` received rows: parallel.moe_dispatch_factor times the rows of a balanced load. If a
// rank gets more, all ranks of the group run several rounds, in each of which a rank receives its next `capacity` rows
// in the order of its experts' rows. Nothing is dropped or allocated. A round's activations are not kept if there are
// several: the backward pass computes them again.
//
// Before the rows, the ranks gather the numbers of their rows per expert, from which each computes the sizes of all
// messages and the number of rounds. The host waits for these numbers once per layer and microbatch, while the device
// computes the shared expert's up projection; the backward pass knows them.
//
// The order of rows, and with it every sum, depends on the routing only. Outputs and gradients of tokens have the bits
// of one rank where a GEMM's row does not depend on the other rows. Weight gradients sum the tokens of all ranks in one
// GEMM instead of a GEMM per rank and a reduction, so their rounding differs; so do current scales of several rounds.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/memory_plan.h"
#include "kernels/quantize/fp8_output.h"
#include "model/dimensions.h"
#include "model/layer_steps.h"
#include "parallel/communicator.h"

namespace te::model {

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
    explicit Stream(const Context& of) : context(of.side(true)), ready(of), done(of) {}
    Context context;
    Event ready, done;  ///< the data to be sent; the received data
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
    PlannedTensor counts;       ///< i32 [ranks, experts + 1]: first sent row of each expert, of all ranks
    std::vector<int32_t> host;  ///< the same
    int rounds = 0;
  };
  void plan_routing(MemoryPlan& plan, Routing& routing) const;
  /// `fp8_x`, `fp8_dy`: rows are sent as FP8.
  void plan_scratch(MemoryPlan& plan, bool fp8_x, bool fp8_dy);

  int64_t sent_rows() const { return dims_.tokens * topk_; }
  /// Rows of the experts of this rank in a round.
  int64_t rows() const;

  /// What the rows that a pass sends are copies of.
  struct SentTokens {
    Tensor values;                    ///< [tokens, hidden]; with `operand` until the last round
    kernels::Fp8Output operand = {};  ///< as FP8: of this rank's experts (ExpertLinear::sent_input)
  };
  struct Sent {
    Tensor source, row_of;  ///< of the sent rows
    SentTokens x, dy;       ///< without dy: no gradients
    bool gradients() const { return static_cast<bool>(dy.values); }
  };

  // --- a pass, in this order ---
  /// Gathers the numbers of rows. offsets: i32 [experts + 1] of this rank's sent rows, in the order of `source`.
  void count(const Context& context, const Tensor& offsets, Routing& routing) const;
  /// Copies tokens x [tokens, hidden], probabilities and numbers (if any) [tokens, topk] to the sent rows; dy likewise.
  /// Rows that are sent as FP8 are quantized when a round starts.
  void pack(const Context& context, const Tensor& x, const Tensor& probs, const Tensor& numbers,
            const Tensor& source) const;
  void pack_gradients(const Context& context, const Tensor& dy, const Tensor& source) const;
  /// The host waits for count().
  void wait_for_counts(const Context& context, Routing& routing) const;
  /// Starts the first round on another CUDA stream, after pack().
  void start(const Context& context, const Routing& routing, const Sent& sent) const {
    launch(context, routing, 0, sent);
  }
  /// A round's rows, copies of received ones.
  struct Rows {
    Tensor offsets;              ///< i32 [own experts + 1]
    Tensor source;               ///< i32 [rows()]: index in probs and the received rows, or -1
    Tensor probs;                ///< fp32 [capacity, 1]
    Tensor received, gradients;  ///< [capacity, hidden]: x and dy, if sent; until send_back()
    Tensor numbers;              ///< i32 [capacity, 1], or empty
  };
  /// Waits for a round, after starting it unless it is the first. `sent`: as in start().
  Rows receive(const Context& context, const Routing& routing, int round, const Sent& sent) const;
  /// For the gradients of Rows::probs, which the next send_back() returns.
  const Tensor& d_probs() const { return received_d_probs_; }
  /// Returns a round's results, y or dx [rows(), hidden], to the ranks of the tokens.
  void send_back(const Context& context, const Routing& routing, int round, const Tensor& rows,
                 bool gradients) const;
  /// After the last round: the results in the order of the sent rows, and the gradients of probabilities,
  /// d_probs [tokens, topk].
  const Tensor& returned() const { return sent_; }
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
    sent_counts
  };
  int64_t own_experts() const { return experts_ / ranks_.size(); }
  /// Rows of each rank that arrive at rank `to` in a round.
  parallel::RowRanges ranges_to(const Routing& routing, int to, int round) const;
  /// The rows of a round that this rank sends to each rank, and the received rows of each.
  struct Exchange {
    parallel::RowRanges sent, received;
  };
  Exchange exchange(const Routing& routing, int round) const;
  void launch(const Context& context, const Routing& routing, int round, const Sent& sent) const;
  int count_rounds(const Routing& routing) const;
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
  bool numbers_, fp8_x_ = false, fp8_dy_ = false;
  // Scratch. Sent rows [sent_rows(), hidden] also have the returned results, received rows [capacity, hidden] the
  // results that are sent back.
  PlannedTensor sent_, received_, sent_gradients_, received_gradients_;
  PlannedTensor sent_probs_, received_probs_;              ///< fp32 [sent_rows(), 1], [capacity, 1]
  PlannedTensor sent_d_probs_, received_d_probs_;          ///< likewise
  PlannedTensor sent_numbers_, received_numbers_;          ///< likewise, i32
  PlannedTensor offsets_, segments_, source_, row_of_;     ///< kernels::DispatchRows
  PlannedTensor ranges_, scale_messages_, amax_, scales_;  ///< kernels/moe/send_fp8.h
  PlannedTensor sent_counts_;                              ///< i64 [2, ranks, experts, 2]: of x and dy
};

}  // namespace te::model
