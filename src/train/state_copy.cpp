#include "train/state_copy.h"

#include "core/error.h"
#include "parallel/watchdog.h"

namespace te::train {

using checkpoint::StateTensor;

int64_t state_copy_bytes(StepRunner& runner) {
  int64_t bytes = 0;
  for (const StateTensor& state : runner.training_state().tensors()) bytes += state.tensor.planned_bytes();
  return bytes;
}

StateCopy::StateCopy(const Context& context, StepRunner& runner) : context_(context), runner_(runner) {
  for (const StateTensor& state : runner.training_state().tensors())
    buffers_.emplace_back(context, state.tensor.bytes());
}

std::vector<StateTensor> StateCopy::idle_state() {
  runner_.optimizer().gatherer().wait_all(context_);
  const checkpoint::TrainingState state = runner_.training_state();
  state.wait_offload();
  return state.tensors();
}

void StateCopy::save(const checkpoint::Progress& progress) {
  const parallel::Watchdog::Guard guard(context_, "the copy of the state");
  const std::vector<StateTensor> state = idle_state();
  for (size_t i = 0; i < state.size(); ++i) context_.copy_to_host(buffers_[i].as<void>(), state[i].tensor);
  context_.synchronize();
  progress_ = progress;
  progress_.updates = runner_.optimizer().updates();
  num_quantizations_ = runner_.model().recipe().table().num_quantizations();
  has_copy_ = true;
}

const checkpoint::Progress& StateCopy::restore() {
  TE_CHECK(has_copy_, "there is no copy of the state");
  const parallel::Watchdog::Guard guard(context_, "the copy of the state");
  const std::vector<StateTensor> state = idle_state();
  for (size_t i = 0; i < state.size(); ++i) context_.copy_to_device(state[i].tensor, buffers_[i].as<void>());
  context_.synchronize();
  runner_.optimizer().gatherer().invalidate();
  runner_.optimizer().set_updates(progress_.updates);
  runner_.model().recipe().table().num_quantizations() = num_quantizations_;
  runner_.model().weights_changed(false);
  return progress_;
}

}  // namespace te::train
