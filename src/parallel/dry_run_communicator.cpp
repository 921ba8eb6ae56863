#include "parallel/dry_run_communicator.h"

#include <algorithm>

namespace te::parallel {

Tensor DryRunCommunicator::last_sent_;

Tensor DryRunCommunicator::part(const Tensor& full, int rank) const {
  const int64_t count = full.numel() / size();
  return {static_cast<char*>(full.data) + static_cast<size_t>(rank * count) * dtype_size(full.dtype),
          full.dtype,
          {count}};
}

void DryRunCommunicator::do_all_gather(const Context& context, const Tensor& in, const Tensor& out) {
  const Tensor own = in.view({in.numel()});
  for (int i = 0; i < size(); ++i) {
    const Tensor target = part(out, i);
    if (target.data != own.data) context.copy(target, own);
  }
}

void DryRunCommunicator::do_all_to_all(const Context& context, const Tensor& in, const RowRanges& sent,
                                       const Tensor& out, const RowRanges& received) {
  for (size_t peer = 0; peer < sent.size(); ++peer) {
    const int64_t count = std::min(sent[peer].count, received[peer].count);
    const int64_t missing = received[peer].count - count;
    if (count > 0)
      context.copy(out.slice_rows(received[peer].first, count), in.slice_rows(sent[peer].first, count));
    if (missing > 0) context.zero(out.slice_rows(received[peer].first + count, missing));
  }
}

void DryRunCommunicator::do_reduce_scatter(const Context& context, const Tensor& in, const Tensor& out) {
  const Tensor own = part(in, rank());
  if (own.data != out.data) context.copy(out.view({out.numel()}), own);
}

void DryRunCommunicator::do_receive(const Context& context, const Tensor& t, int) {
  if (last_sent_ && last_sent_.bytes() == t.bytes()) context.copy(t, last_sent_);
}

}  // namespace te::parallel
