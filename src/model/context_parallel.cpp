#include "model/context_parallel.h"

#include <vector>

#include "kernels/rearrange/rearrange.h"

namespace te::model {

ContextParallel::ContextParallel(const config::ModelConfig& model, int64_t micro_batch_size)
    : batch_(micro_batch_size), split_(model.seq_length, 0, 1) {}

ContextParallel::ContextParallel(const config::ModelConfig& model, int64_t micro_batch_size,
                                 parallel::Communicator& group, int tensor_ranks)
    : batch_(micro_batch_size), split_(model.seq_length, group.rank(), group.size()), group_(&group) {
  if (size() == 1) return;
  const bool heads = model.num_query_groups / tensor_ranks % size() == 0;
  exchange_ = heads ? ContextExchange::heads : ContextExchange::keys;
}

void ContextParallel::plan(MemoryPlan& plan) {
  if (size() == 1) return;
  const int64_t tokens = batch_ * split_.local();
  plan.add(positions_, "context.positions", MemoryKind::data, DType::i32, {tokens});
  plan.add(order_, "context.order", MemoryKind::data, DType::i32, {size() * tokens});
}

void ContextParallel::fill(const Context& context) const {
  if (size() == 1) return;
  std::vector<int32_t> order, positions;
  for (int rank = 0; rank < size(); ++rank) {
    for (int64_t sample = 0; sample < batch_; ++sample) {
      for (const parallel::TokenRange& range : split_.ranges_of(rank)) {
        for (int64_t position = range.begin; position < range.begin + range.count; ++position) {
          order.push_back(static_cast<int32_t>(sample * split_.seq() + position));
          if (rank == this->rank()) positions.push_back(static_cast<int32_t>(position));
        }
      }
    }
  }
  context.copy_to_device(positions_, positions.data());
  context.copy_to_device(order_, order.data());
  context.synchronize();  // the host vectors must outlive the copies
}

void ContextParallel::in_order(const Context& context, const Tensor& by_rank, const Tensor& full) const {
  kernels::row_order(context, {.rows = by_rank, .index = order_, .ordered = full});
}

void ContextParallel::by_rank(const Context& context, const Tensor& full, const Tensor& by_rank) const {
  kernels::row_order(context, {.rows = by_rank, .index = order_, .ordered = full, .inverse = true});
}

}  // namespace te::model
