// Communication before and after tensor-parallel layers.
//
// A tensor-parallel layer processes all tokens of a microbatch with a shard of every matrix. Without sequence
// parallelism every rank has the full residual stream: there is no communication before the layer, and an all-reduce
// after it. With sequence parallelism each rank has a shard of the tokens: an all-gather before the layer, a
// reduce-scatter after it. The communication volume is the same, and the work of norms and dropout and the saved
// activations shrink by the number of ranks (Korthikanti et al., arXiv 2205.05198).
//
// Overlap: both collectives may be divided into chunks along the tokens, so that one chunk is transferred on a separate
// CUDA stream while the GEMM of another chunk runs. A rank's shard then consists of its part of every chunk, in order:
//
//   tokens   | chunk 0: rank 0, rank 1 | chunk 1: rank 0, rank 1 |        shard of rank 1: | p0 r1 | p1 r1 |
//
// On GPUs of one host, copy engines may transfer the tokens of sequence parallelism instead (peer_transport.h). A
// rank's shard is then one contiguous run of tokens, and peer_chunks.h defines the chunks.
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
  /// `chunks` is the number of chunks of every collective. `copies` is the copy-engine transport for tokens, or null to
  /// use the group; it must outlive this object.
  TensorParallel(Communicator& group, bool sequence, int chunks, PeerTransport* copies = nullptr);

  int rank() const { return group_.rank(); }
  int size() const { return group_.size(); }
  Communicator& group() const { return group_; }
  /// True if the ranks shard the tokens of the residual stream.
  bool sequence() const { return sequence_; }

  /// Plans memory for the copy-engine transport: slots for the other ranks' addends of a tensor [tokens, width].
  void plan(MemoryPlan& plan, DType dtype, int64_t tokens, int64_t width);
  /// Number of rows of the residual stream on this rank, for `tokens` tokens in all.
  int64_t shard(int64_t tokens) const { return sequence_ ? tokens / size() : tokens; }
  /// This rank's rows of a gathered tensor: a shard that is written there need not be copied by gather(). Empty if the
  /// transport does not support this.
  Tensor shard_view(const Tensor& full) const;
  /// True if gather() calls its work once, for all rows, independent of the number of chunks.
  bool gathers_at_once() const { return !sequence_ || (!overlaps() && copies_ == nullptr); }
  /// The token ranges of this rank's shard, for `tokens` tokens in all.
  std::vector<TokenRange> ranges(int64_t tokens) const;

  /// Launches work on rows [first, first + count) of the full tensor on the context.
  using Work = std::function<void(int64_t first, int64_t count)>;
  /// Additional transfers of a gather, which the functions launch on the given CUDA stream with gather_rows() and
  /// gather_blocks(). Their inputs must have been launched on the gather's context before. Functions may be empty.
  struct ExtraTransfers {
    std::function<void(const Context& stream)> before_work;  ///< transfers that the work needs
    std::function<void(const Context& stream)> overlapped;   ///< transfers that may overlap with the work
  };

  /// All-gather: full [tokens, n] from the ranks' shards [shard(tokens), n], of any dtype. Calls `work` for every chunk
  /// as it arrives. Later work on the context runs after all of this, `extra` included. Without sequence
  /// parallelism `full` and `shard` are the same memory, there is no communication, and `extra` must be empty.
  void gather(const Context& context, const Tensor& shard, const Tensor& full, const Work& work = {},
              const ExtraTransfers& extra = {});
  /// All-gather of rows on the CUDA stream, with sequence parallelism. A row may represent several tokens (a row of
  /// scales), if every run of a rank's tokens has a whole number of rows.
  void gather_rows(const Context& stream, const Tensor& shard, const Tensor& full);
  /// All-gather of one block per rank to blocks [ranks, ...] on the CUDA stream, with sequence parallelism. Blocks have
  /// any contents; `block` may be this rank's part of `blocks`.
  void gather_blocks(const Context& stream, const Tensor& block, const Tensor& blocks);
  /// Reduce-scatter: `produce` writes this rank's addend of a chunk to `full`; shard = the sum over the ranks (f32 or
  /// bf16). Without sequence parallelism `shard` and `full` are the same memory. `overlapped_work` is launched while
  /// the last chunk is transferred; the copy-engine transport then uses one chunk, because copies do not slow the work
  /// down.
  void reduce(const Context& context, const Tensor& full, const Tensor& shard, const Work& produce,
              const std::function<void()>& overlapped_work = {});

 private:
  void gather_copied(const Context& context, const Tensor& shard, const Tensor& full, const Work& work,
                     const ExtraTransfers& extra);
  void gather_chunk(const Context& stream, const Tensor& shard, const Tensor& full, int chunk);
  void send_chunk(const Context& context, const Tensor& full, const Tensor& shard, int chunk);
  bool overlaps() const { return chunks_ > 1 && size() > 1; }
  struct Side;
  Side& side(const Context& context);

  Communicator& group_;
  bool sequence_;
  int chunks_;
  PeerTransport* copies_;       ///< copy-engine transport, or null
  PlannedTensor slots_;         ///< [(size - 1) * shard, width], for copies_
  std::shared_ptr<Side> side_;  ///< created at the first use
};

}  // namespace te::parallel
