#include "parallel/silent_communicator.h"

namespace te::parallel {

Tensor SilentCommunicator::last_sent_;

Tensor SilentCommunicator::part(const Tensor& whole, int rank) const {
  const int64_t count = whole.numel() / size();
  return {static_cast<char*>(whole.data) + static_cast<size_t>(rank * count) * dtype_size(whole.dtype),
          whole.dtype,
          {count}};
}

void SilentCommunicator::do_all_gather(const Context& context, const Tensor& in, const Tensor& out) {
  const Tensor own = in.view({in.numel()});
  for (int i = 0; i < size(); ++i) {
    const Tensor target = part(out, i);
    if (target.data != own.data) context.copy(target, own);
  }
}

void SilentCommunicator::do_reduce_scatter(const Context& context, const Tensor& in, const Tensor& out) {
  const Tensor own = part(in, rank());
  if (own.data != out.data) context.copy(out.view({out.numel()}), own);
}

void SilentCommunicator::do_receive(const Context& context, const Tensor& t, int) {
  if (last_sent_ && last_sent_.bytes() == t.bytes()) context.copy(t, last_sent_);
}

}  // namespace te::parallel
