#include "parallel/tensor_parallel.h"

#include <utility>

#include "core/error.h"

namespace te::parallel {

/// The CUDA stream for chunks, and events for synchronization with the step's CUDA stream.
struct TensorParallel::Side {
  Side(const Context& context, int chunks) : stream(context.side()), start(context), end(context) {
    for (int i = 0; i < chunks; ++i) chunks_done.emplace_back(context);
  }
  Context stream;
  Event start, end;
  std::vector<Event> chunks_done;
};

TensorParallel::TensorParallel(Communicator& group, bool sequence, int chunks, PeerTransport* copies)
    : group_(group),
      sequence_(sequence && group.size() > 1),
      chunks_(group.size() > 1 ? chunks : 1),
      copies_(sequence_ ? copies : nullptr) {}

void TensorParallel::plan(MemoryPlan& plan, DType dtype, int64_t tokens, int64_t width) {
  if (copies_ == nullptr) return;
  plan.add(slots_, "tensor_transport.slots", MemoryKind::scratch, dtype,
           {(size() - 1) * shard(tokens), width});
}

TensorParallel::Side& TensorParallel::side(const Context& context) {
  if (!side_) side_ = std::make_shared<Side>(context, chunks_);
  return *side_;
}

Tensor TensorParallel::shard_view(const Tensor& full) const {
  if (copies_ == nullptr || !full) return {};
  return full.slice_rows(rank() * shard(full.rows()), shard(full.rows()));
}

std::vector<TokenRange> TensorParallel::ranges(int64_t tokens) const {
  if (!sequence_) return {{0, 0, tokens}};
  if (copies_ != nullptr) return {{0, rank() * shard(tokens), shard(tokens)}};
  const int64_t chunk = tokens / chunks_, part = chunk / size();
  std::vector<TokenRange> result;
  for (int i = 0; i < chunks_; ++i) result.push_back({i * part, i * chunk + rank() * part, part});
  return result;
}

// --- all-gather -----------------------------------------------------------------------------------------------

void TensorParallel::gather_chunk(const Context& stream, const Tensor& shard, const Tensor& full, int chunk) {
  const int64_t rows = full.rows() / chunks_, part = shard.rows() / chunks_;
  group_.all_gather(stream, shard.slice_rows(chunk * part, part), full.slice_rows(chunk * rows, rows));
}

void TensorParallel::gather_rows(const Context& stream, const Tensor& shard, const Tensor& full) {
  if (copies_ != nullptr) return copies_->gather(stream, shard, full, 1, {});
  for (int i = 0; i < chunks_; ++i) gather_chunk(stream, shard, full, i);
}

void TensorParallel::gather_blocks(const Context& stream, const Tensor& block, const Tensor& blocks) {
  if (copies_ != nullptr) return copies_->gather(stream, block, blocks, 1, {});
  group_.all_gather(stream, block, blocks);
}

void TensorParallel::gather(const Context& context, const Tensor& shard, const Tensor& full, const Work& work,
                            const ExtraTransfers& extra) {
  const int64_t tokens = full.rows(), chunk = tokens / chunks_;
  if (!sequence_) {
    TE_CHECK(!extra.before_work && !extra.overlapped,
             "gather with extra transfers needs sequence parallelism");
    if (work) work(0, tokens);
    return;
  }
  if (copies_ != nullptr) return gather_copied(context, shard, full, work, extra);
  if (!overlaps() && !(work && extra.overlapped)) {
    if (extra.before_work) extra.before_work(context);
    gather_rows(context, shard, full);
    if (work) work(0, tokens);
    if (extra.overlapped) extra.overlapped(context);
    return;
  }
  Side& other = side(context);
  other.start.record(context);
  other.start.wait(other.stream);
  if (extra.before_work) extra.before_work(other.stream);
  for (int i = 0; i < chunks_; ++i) {
    gather_chunk(other.stream, shard, full, i);
    other.chunks_done[i].record(other.stream);
  }
  if (extra.overlapped) {
    extra.overlapped(other.stream);
    other.end.record(other.stream);
  }
  for (int i = 0; i < chunks_; ++i) {
    other.chunks_done[i].wait(context);
    if (work) work(i * chunk, chunk);
  }
  if (extra.overlapped) other.end.wait(context);
}

// Ranks signal in the order of the gathers that these may be written, so the extra transfers' CUDA stream has to
// wait for the rows' signal. This costs no time: all copies of a rank run in one CUDA stream, in which the extra
// transfers follow the rows.
void TensorParallel::gather_copied(const Context& context, const Tensor& shard, const Tensor& full,
                                   const Work& work, const ExtraTransfers& extra) {
  if (extra.before_work) extra.before_work(context);
  if (!extra.overlapped) return copies_->gather(context, shard, full, chunks_, work);
  Side& other = side(context);
  bool started = false;
  copies_->gather(context, shard, full, chunks_, [&](int64_t first, int64_t count) {
    if (!std::exchange(started, true)) other.start.record(context);
    if (work) work(first, count);
  });
  other.start.wait(other.stream);
  extra.overlapped(other.stream);
  other.end.record(other.stream);
  other.end.wait(context);
}

// --- reduce-scatter -------------------------------------------------------------------------------------------

void TensorParallel::send_chunk(const Context& context, const Tensor& full, const Tensor& shard, int chunk) {
  const int64_t rows = full.rows() / chunks_, part = shard.rows() / chunks_;
  if (sequence_) {
    group_.reduce_scatter(context, full.slice_rows(chunk * rows, rows), shard.slice_rows(chunk * part, part));
  } else {
    group_.all_reduce(context, full.slice_rows(chunk * rows, rows), ReduceOp::sum);
  }
}

void TensorParallel::reduce(const Context& context, const Tensor& full, const Tensor& shard,
                            const Work& produce, const std::function<void()>& overlapped_work) {
  if (copies_ != nullptr)
    return copies_->reduce(context, full, shard, slots_, overlapped_work ? 1 : chunks_, produce,
                           overlapped_work);
  if (size() == 1 || (chunks_ == 1 && !overlapped_work)) {
    produce(0, full.rows());
    if (overlapped_work) overlapped_work();
    if (size() > 1) send_chunk(context, full, shard, 0);
    return;
  }
  Side& other = side(context);
  const int64_t rows = full.rows() / chunks_;
  for (int i = 0; i < chunks_; ++i) {
    produce(i * rows, rows);
    other.chunks_done[i].record(context);
    other.chunks_done[i].wait(other.stream);
    send_chunk(other.stream, full, shard, i);
  }
  other.end.record(other.stream);
  if (overlapped_work) overlapped_work();
  other.end.wait(context);
}

}  // namespace te::parallel
