#include "train/validation.h"

#include <optional>

#include "core/error.h"

namespace te::train {

using parallel::Axis;

namespace {

/// The mean loss over one set; empty on all ranks after a read error on one of them. With parallel.shard: parameters a
/// pass has collectives over all data-parallel ranks, so all make the same number of passes: a rank whose samples have
/// ended evaluates samples after the last one, which do not count.
std::optional<double> validation_loss(StepRunner& runner, const Batches& batches, size_t set,
                                      int64_t micro_batch_size, parallel::World& world,
                                      std::string& bad_data) {
  const parallel::Groups& groups = runner.groups();
  const int64_t own = micro_batch_size * groups.at()[Axis::data],
                all = micro_batch_size * groups.grid()[Axis::data];
  int64_t counted = 0;
  runner.begin_evaluation();
  for (int64_t first = 0; first < batches.validation_samples(set); first += all) {
    data::Batch data;
    try {
      data = batches.validation(set, first + own);
    } catch (const UserError& error) {  // keep running, as the other ranks wait
      bad_data = error.what();
      data = batches.nothing();
    }
    counted += Batches::counted(data.targets.data(), static_cast<int64_t>(data.targets.size()));
    runner.evaluate(Batches::view(data));
  }
  counted = world.sum_i64(counted, groups.data().world_ranks());
  const double sum = runner.finish_evaluation();
  if (world.max_i64(bad_data.empty() ? 0 : 1) != 0) return {};
  return mean_loss(sum, counted);
}

}  // namespace

std::vector<SetLoss> validation_losses(StepRunner& runner, const Batches& batches, int64_t micro_batch_size,
                                       parallel::World& world, std::string& bad_data) {
  std::vector<SetLoss> losses;
  for (size_t set = 0; set < batches.validation_sets(); ++set) {
    const std::optional<double> loss =
        validation_loss(runner, batches, set, micro_batch_size, world, bad_data);
    if (!loss) return {};
    losses.push_back({batches.validation_name(set), *loss});
  }
  return losses;
}

}  // namespace te::train
