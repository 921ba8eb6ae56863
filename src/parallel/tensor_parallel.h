// The border between what the tensor ranks share and what each of them holds alone.
//
// A tensor-parallel layer works on all tokens of a microbatch with a part of every matrix. Around it lies the
// residual stream. Without sequence parallelism every rank holds the whole stream, so nothing is sent before the
// layer, and an all-reduce sums behind it. With it each rank holds a share of the tokens: an all-gather before the
// layer, a reduce-scatter behind it; as many bytes travel, and norms, dropout and saved
// activations shrink by the number of ranks (Korthikanti et al., arXiv 2205.05198).
//
// Overlap: both may be cut into pieces along the tokens, so that one piece travels on a stream of its own while
// the GEMM of another runs. A rank's share is then its part of every piece, in order:
//
//   tokens   | piece 0: rank 0, rank 1 | piece 1: rank 0, rank 1 |        share of rank 1: | p0 r1 | p1 r1 |
//
// On GPUs of one host the tokens of sequence parallelism may travel by copy engines instead (peer_transport.h). A
// rank's share is one run of tokens then, and the pieces are those of peer_pieces.h.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "core/device.h"
#include "core/memory_plan.h"
#include "parallel/communicator.h"
#include "parallel/peer_transport.h"
#include "parallel/token_range.h"

namespace te::parallel {

class TensorParallel {
 public:
  /// `pieces`: how many every exchange is cut into. `copies`: by which tokens travel, where that is not the group; it
  /// must outlive this.
  TensorParallel(Communicator& group, bool sequence, int pieces, PeerTransport* copies = nullptr);

  int rank() const { return group_.rank(); }
  int size() const { return group_.size(); }
  Communicator& group() const { return group_; }
  /// True when the ranks share the tokens of the stream.
  bool sequence() const { return sequence_; }

  /// Memory that copies need: slots for the other ranks' addends of a tensor [tokens, width].
  void plan(MemoryPlan& plan, DType dtype, int64_t tokens, int64_t width);
  /// Rows of the stream that this rank holds, of `tokens`.
  int64_t share(int64_t tokens) const { return sequence_ ? tokens / size() : tokens; }
  /// This rank's rows of a gathered tensor, where a share that is written there need not be copied to its place; empty
  /// elsewhere.
  Tensor place_of_share(const Tensor& whole) const;
  /// Where the rows of this rank's share lie among `tokens`.
  std::vector<TokenRange> ranges(int64_t tokens) const;

  /// Launches work on rows [first, first + count) of the whole on the context.
  using Work = std::function<void(int64_t first, int64_t count)>;

  /// All-gather: whole [tokens, n] from the ranks' shares [share(tokens), n], of any dtype; then work on every piece,
  /// as it arrives. Without sequence parallelism whole and share are the same memory and nothing is sent.
  void gather(const Context& context, const Tensor& share, const Tensor& whole, const Work& work = {});
  /// Reduce-scatter: `produce` writes this rank's addend of a piece to `whole`; share = the sum over the ranks (f32 or
  /// bf16), which without sequence parallelism is the same memory as whole. `meanwhile` is launched while the last
  /// piece travels; copies, which take nothing from it, are not cut then.
  void reduce(const Context& context, const Tensor& whole, const Tensor& share, const Work& produce,
              const std::function<void()>& meanwhile = {});

 private:
  void send_piece(const Context& context, const Tensor& whole, const Tensor& share, int piece);
  bool overlaps() const { return pieces_ > 1 && size() > 1; }
  struct Side;
  Side& side(const Context& context);

  Communicator& group_;
  bool sequence_;
  int pieces_;
  PeerTransport* copies_;       ///< or null
  Tensor slots_;                ///< [(size - 1) * share, width]: of copies
  std::shared_ptr<Side> side_;  ///< made at the first use
};

}  // namespace te::parallel
