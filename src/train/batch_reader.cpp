#include "train/batch_reader.h"

#include "core/error.h"

namespace te::train {

void BatchReader::read(int64_t first_sample, HostBatch& batch) {
  int64_t counted = 0;
  try {
    counted = batches_.read(first_sample + runner_.first_local_sample(), runner_.local_samples(), batch);
  } catch (const UserError& error) {
    bad_data_ = error.what();
  }
  const std::vector<int>& ranks = runner_.groups().data().world_ranks();
  batch.counted = world_.sum_i64(counted, ranks);
  if (runner_.padded()) batch.unpadded = world_.sum_i64(Batches::unpadded(batch), ranks);
}

// A read error may have occurred on some of the ranks only.
void BatchReader::throw_pending_data_error() {
  world_.run_collectively([&] {
    if (!bad_data_.empty()) user_error("{}", bad_data_);
  });
}

}  // namespace te::train
