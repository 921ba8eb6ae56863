#include "train/validation.h"

#include <algorithm>

#include "core/error.h"

namespace te::train {

std::optional<double> validation_loss(StepRunner& runner, const Batches& batches, int64_t micro_batch_size,
                                      parallel::World& world, std::string& bad_data) {
  const parallel::Communicator& data_group = runner.groups().data();
  int64_t counted = 0;
  runner.begin_evaluation();
  for (int64_t first = micro_batch_size * data_group.rank(); first < batches.validation_samples();
       first += micro_batch_size * data_group.size()) {
    data::Batch data;
    try {
      data = batches.validation(first);
    } catch (const UserError& error) {  // the other ranks wait for this one
      bad_data = error.what();
      data = batches.nothing();
    }
    counted += Batches::counted(data.targets.data(), static_cast<int64_t>(data.targets.size()));
    runner.evaluate(Batches::view(data));
  }
  counted = world.sum_i64(counted, data_group.world_ranks());
  const double loss = runner.finish_evaluation() / static_cast<double>(std::max<int64_t>(1, counted));
  if (world.max_i64(bad_data.empty() ? 0 : 1) != 0) return {};
  return loss;
}

}  // namespace te::train
