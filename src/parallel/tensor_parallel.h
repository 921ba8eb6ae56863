// The border between what the tensor ranks share and what each of them holds alone.
//
// A tensor-parallel layer works on all tokens of a microbatch with a part of every matrix. Around it lies the
// residual stream. Without sequence parallelism every rank holds the whole stream, so nothing is sent before the
// layer, and an all-reduce sums behind it. With it each rank holds a shard of the tokens: an all-gather before the
// layer, a reduce-scatter behind it; as many bytes travel, and norms, dropout and saved
// activations shrink by the number of ranks (Korthikanti et al., arXiv 2205.05198).
//
// Overlap: both may be cut into pieces along the tokens, so that one piece travels on a stream of its own while
// the GEMM of another runs. A rank's shard is then its part of every piece, in order:
//
//   tokens   | piece 0: rank 0, rank 1 | piece 1: rank 0, rank 1 |        shard of rank 1: | p0 r1 | p1 r1 |
//
// On GPUs of one host the tokens of sequence parallelism may travel by copy engines instead (peer_transport.h). A
// rank's shard is one run of tokens then, and the pieces are those of peer_pieces.h.
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
  /// True when the ranks shard the tokens of the stream.
  bool sequence() const { return sequence_; }

  /// Memory that copies need: slots for the other ranks' addends of a tensor [tokens, width].
  void plan(MemoryPlan& plan, DType dtype, int64_t tokens, int64_t width);
  /// Rows of the stream that this rank holds, of `tokens`.
  int64_t shard(int64_t tokens) const { return sequence_ ? tokens / size() : tokens; }
  /// This rank's rows of a gathered tensor, where a shard that is written there need not be copied to its place; empty
  /// elsewhere.
  Tensor shard_view(const Tensor& full) const;
  /// True when gather() runs its work once, on all rows.
  bool gathers_at_once() const { return !sequence_ || (!overlaps() && copies_ == nullptr); }
  /// Where the rows of this rank's shard lie among `tokens`.
  std::vector<TokenRange> ranges(int64_t tokens) const;

  /// Launches work on rows [first, first + count) of the whole on the context.
  using Work = std::function<void(int64_t first, int64_t count)>;
  /// Messages that go with a gather's rows; each is told the stream on which to launch them, with gather_rows() and
  /// gather_blocks(). Empty: none. What they read has been launched on the gather's context before it.
  struct Companions {
    std::function<void(const Context& stream)> before_work;  ///< the work needs them
    std::function<void(const Context& stream)> overlapped;   ///< it does not: they travel beside it
  };

  /// All-gather: full [tokens, n] from the ranks' shards [shard(tokens), n], of any dtype; then work on every piece,
  /// as it arrives. What is launched on the context behind it finds all of it done, companions included. Without
  /// sequence parallelism full and shard are the same memory and nothing is sent, for which there are no companions.
  void gather(const Context& context, const Tensor& shard, const Tensor& full, const Work& work = {},
              const Companions& companions = {});
  /// With sequence parallelism: the same on the stream, without work. Rows may stand for several tokens each, as those
  /// of scales do, of which every run of a rank's tokens has whole numbers.
  void gather_rows(const Context& stream, const Tensor& shard, const Tensor& full);
  /// Likewise: blocks [ranks, ...] from one of each rank, whatever is in it, which may be in its place there.
  void gather_blocks(const Context& stream, const Tensor& block, const Tensor& blocks);
  /// Reduce-scatter: `produce` writes this rank's addend of a piece to `full`; shard = the sum over the ranks (f32 or
  /// bf16), which without sequence parallelism is the same memory as whole. `overlapped_work` is launched while the
  /// last piece travels; copies, which take nothing from it, are not cut then.
  void reduce(const Context& context, const Tensor& full, const Tensor& shard, const Work& produce,
              const std::function<void()>& overlapped_work = {});

 private:
  void gather_copied(const Context& context, const Tensor& shard, const Tensor& full, const Work& work,
                     const Companions& companions);
  void gather_piece(const Context& stream, const Tensor& shard, const Tensor& full, int piece);
  void send_piece(const Context& context, const Tensor& full, const Tensor& shard, int piece);
  bool overlaps() const { return pieces_ > 1 && size() > 1; }
  struct Side;
  Side& side(const Context& context);

  Communicator& group_;
  bool sequence_;
  int pieces_;
  PeerTransport* copies_;       ///< or null
  Tensor slots_;                ///< [(size - 1) * shard, width]: of copies
  std::shared_ptr<Side> side_;  ///< made at the first use
};

}  // namespace te::parallel
