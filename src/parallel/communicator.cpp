#include "parallel/communicator.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/profile.h"
#include "parallel/operation.h"

namespace te::parallel {
namespace {

bool disjoint(const Tensor& a, const Tensor& b) {
  const auto* const first = static_cast<const char*>(a.data);
  const auto* const second = static_cast<const char*>(b.data);
  return first + a.bytes() <= second || second + b.bytes() <= first;
}

/// `full` must consist of one part per rank; `part` must be the rank's own part of it, or not overlap it.
void check_parts(const Communicator& group, const char* operation, const Tensor& part, const Tensor& full) {
  TE_CHECK(part.dtype == full.dtype, "{} of group {}: a part of dtype {} and a full tensor of {}", operation,
           group.name(), dtype_name(part.dtype), dtype_name(full.dtype));
  TE_CHECK(full.numel() == part.numel() * group.size(),
           "{} of group {}: {} elements, shape {}, are not {} ranks' parts of {}, shape {}", operation,
           group.name(), full.numel(), full.shape.str(), group.size(), part.numel(), part.shape.str());
  const char* own = static_cast<char*>(full.data) + static_cast<size_t>(group.rank()) * part.bytes();
  TE_CHECK(part.numel() == 0 || part.data == own || disjoint(part, full),
           "{} of group {}: the rank's part overlaps the full tensor, but is not its part of rank {}",
           operation, group.name(), group.rank());
}

void check_reducible(const Communicator& group, const char* operation, const Tensor& t) {
  TE_CHECK(is_high_precision(t.dtype) || t.dtype == DType::i32,
           "{} of group {}: {} cannot be reduced, only fp32, bf16, fp16 and int32", operation, group.name(),
           dtype_name(t.dtype));
}

/// Reports a collective to a profiler and runs it, unless the context only traces. A group of one rank does not
/// communicate; its copies report themselves.
template <class Work>
void run_collective(const Communicator& group, const Context& context, const char* operation,
                    const Tensor& full, Work&& work) {
  if (group.size() == 1) return work();
  const ProfileScope scope(context, operation, static_cast<double>(full.bytes()), group.name());
  if (context.executes()) work();
}

void check_peer(const Communicator& group, const char* operation, int peer) {
  TE_CHECK(peer >= 0 && peer < group.size(), "{} of group {}: rank {} of {}", operation, group.name(), peer,
           group.size());
}

}  // namespace

Communicator::Communicator(std::string name, std::vector<int> world_ranks, int rank)
    : name_(std::move(name)), world_ranks_(std::move(world_ranks)), rank_(rank) {
  TE_CHECK(rank_ >= 0 && rank_ < size(), "group {}: rank {} of {}", name_, rank_, size());
}

void Communicator::all_reduce(const Context& context, const Tensor& t, ReduceOp op) {
  check_reducible(*this, "all_reduce", t);
  if (t.numel() == 0) return;
  const Operation operation(op == ReduceOp::sum ? "all_reduce" : "all_reduce max", *this, context);
  run_collective(*this, context, "all_reduce", t, [&] { do_all_reduce(context, t, op); });
}

void Communicator::all_gather(const Context& context, const Tensor& in, const Tensor& out) {
  check_parts(*this, "all_gather", in, out);
  if (in.numel() == 0) return;
  const Operation operation("all_gather", *this, context);
  run_collective(*this, context, "all_gather", out, [&] { do_all_gather(context, in, out); });
}

void Communicator::all_to_all(const Context& context, const Tensor& in, const Tensor& out) {
  TE_CHECK(in.dtype == out.dtype && in.numel() == out.numel(), "all_to_all of group {}: {} {} to {} {}",
           name_, dtype_name(in.dtype), in.shape.str(), dtype_name(out.dtype), out.shape.str());
  TE_CHECK(in.numel() % size() == 0, "all_to_all of group {}: {} elements, shape {}, in {} equal parts",
           name_, in.numel(), in.shape.str(), size());
  if (in.numel() == 0) return;
  RowRanges parts;
  for (int peer = 0; peer < size(); ++peer) parts.push_back({peer, 1});
  const Shape by_rank{size(), in.numel() / size()};
  all_to_all(context, in.view(by_rank), parts, out.view(by_rank), parts);
}

void Communicator::all_to_all(const Context& context, const Tensor& in, const RowRanges& sent,
                              const Tensor& out, const RowRanges& received) {
  TE_CHECK(in.dtype == out.dtype && in.cols() == out.cols(), "all_to_all of group {}: {} {} to {} {}", name_,
           dtype_name(in.dtype), in.shape.str(), dtype_name(out.dtype), out.shape.str());
  int64_t rows = 0, moved = 0;
  for (const auto& [tensor, ranges] : {std::pair{&in, &sent}, std::pair{&out, &received}}) {
    TE_CHECK(ranges->size() == world_ranks_.size(), "all_to_all of group {}: {} ranges of rows for {} ranks",
             name_, ranges->size(), size());
    for (const RowRange& range : *ranges) {
      TE_CHECK(range.first >= 0 && range.count >= 0 && range.first + range.count <= tensor->rows(),
               "all_to_all of group {}: rows {}+{} of {}", name_, range.first, range.count,
               tensor->shape.str());
      (tensor == &in ? rows : moved) += range.count;
    }
  }
  const auto own = static_cast<size_t>(rank_);
  TE_CHECK(sent[own].count == received[own].count,
           "all_to_all of group {}: rank {} sends itself {} rows, but receives {}", name_, rank_,
           sent[own].count, received[own].count);
  if ((rows == 0 && moved == 0) || in.cols() == 0) return;
  TE_CHECK(disjoint(in, out), "all_to_all of group {}: in and out overlap", name_);
  const Operation operation("all_to_all", *this, context);
  run_collective(*this, context, "all_to_all", {in.data, in.dtype, {std::max(rows, moved), in.cols()}},
                 [&] { do_all_to_all(context, in, sent, out, received); });
}

void Communicator::reduce_scatter(const Context& context, const Tensor& in, const Tensor& out) {
  check_reducible(*this, "reduce_scatter", in);
  check_parts(*this, "reduce_scatter", out, in);
  if (out.numel() == 0) return;
  const Operation operation("reduce_scatter", *this, context);
  run_collective(*this, context, "reduce_scatter", in, [&] { do_reduce_scatter(context, in, out); });
}

void Communicator::send(const Context& context, const Tensor& t, int peer) {
  check_peer(*this, "send", peer);
  TE_CHECK(peer != rank_, "send of group {}: rank {} to itself", name_, peer);
  if (t.numel() == 0) return;
  const Operation operation("send", *this, context);
  run_collective(*this, context, "send", t, [&] { do_send(context, t, peer); });
}

void Communicator::receive(const Context& context, const Tensor& t, int peer) {
  check_peer(*this, "receive", peer);
  TE_CHECK(peer != rank_, "receive of group {}: rank {} from itself", name_, peer);
  if (t.numel() == 0) return;
  const Operation operation("receive", *this, context);
  run_collective(*this, context, "receive", t, [&] { do_receive(context, t, peer); });
}

void Communicator::barrier(const Context& context) {
  const Operation operation("barrier", *this, context);
  do_barrier(context);
}

void SingleCommunicator::do_all_gather(const Context& context, const Tensor& in, const Tensor& out) {
  if (in.data != out.data) context.copy(out, in);
}

void SingleCommunicator::do_all_to_all(const Context& context, const Tensor& in, const RowRanges& sent,
                                       const Tensor& out, const RowRanges& received) {
  context.copy(out.slice_rows(received[0].first, received[0].count),
               in.slice_rows(sent[0].first, sent[0].count));
}

void SingleCommunicator::do_reduce_scatter(const Context& context, const Tensor& in, const Tensor& out) {
  if (in.data != out.data) context.copy(out, in);
}

void UnconnectedCommunicator::refuse(const char* operation) const {
  internal_error(fmt::format("{} of group {}: its ranks {} are not connected (dry run)", operation, name(),
                             list_ranks(world_ranks())),
                 std::source_location::current());
}

}  // namespace te::parallel
