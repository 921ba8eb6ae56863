#include "train/state_copy.h"

#include "core/error.h"

namespace te::train {
namespace {

std::vector<Tensor> state_of(StepRunner& runner) {
  const parameters::ParameterStore& store = runner.model().parameters();
  const optim::Optimizer& optimizer = runner.optimizer();
  std::vector<Tensor> state = runner.model().recipe().table().state();
  for (const Tensor* tensor : std::initializer_list<const Tensor*>{
           &store.values, &store.mains, &optimizer.exp_avg.values, &optimizer.exp_avg.exponents,
           &optimizer.exp_avg_sq.values, &optimizer.exp_avg_sq.exponents})
    if (tensor->is_planned()) state.push_back(*tensor);
  return state;
}

}  // namespace

int64_t state_copy_bytes(StepRunner& runner) {
  int64_t bytes = 0;
  for (const Tensor& tensor : state_of(runner)) bytes += tensor.planned_bytes();
  return bytes;
}

StateCopy::StateCopy(const Context& context, StepRunner& runner) : context_(context), runner_(runner) {
  for (const Tensor& tensor : state_of(runner)) buffers_.emplace_back(context, tensor.bytes());
}

void StateCopy::save() {
  runner_.optimizer().gatherer().wait_all(context_);
  runner_.optimizer().wait_offload();
  const std::vector<Tensor> state = state_of(runner_);
  for (size_t i = 0; i < state.size(); ++i) context_.copy_to_host(buffers_[i].as<void>(), state[i]);
  context_.synchronize();
  updates_ = runner_.optimizer().updates();
  has_copy_ = true;
}

void StateCopy::restore() {
  TE_CHECK(has_copy_, "there is no copy of the state");
  runner_.optimizer().gatherer().wait_all(context_);
  runner_.optimizer().wait_offload();
  const std::vector<Tensor> state = state_of(runner_);
  for (size_t i = 0; i < state.size(); ++i) context_.copy_to_device(state[i], buffers_[i].as<void>());
  context_.synchronize();
  runner_.optimizer().gatherer().invalidate();
  runner_.optimizer().set_updates(updates_);
  runner_.model().weights_changed(false);
}

}  // namespace te::train
