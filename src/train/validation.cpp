#include "train/validation.h"

#include <algorithm>

namespace te::train {

double validation_loss(StepRunner& runner, const Batches& batches, int64_t micro_batch_size,
                       parallel::World& world) {
  const parallel::Communicator& data_group = runner.groups().data();
  int64_t counted = 0;
  runner.begin_evaluation();
  for (int64_t first = micro_batch_size * data_group.rank(); first < batches.validation_samples();
       first += micro_batch_size * data_group.size()) {
    const data::Batch data = batches.validation(first);
    counted += Batches::counted(data.targets.data(), static_cast<int64_t>(data.targets.size()));
    runner.evaluate(Batches::view(data));
  }
  counted = world.sum_i64(counted, data_group.world_ranks());
  return runner.finish_evaluation() / static_cast<double>(std::max<int64_t>(1, counted));
}

}  // namespace te::train
