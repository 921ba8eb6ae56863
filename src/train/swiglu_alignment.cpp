#include "train/swiglu_alignment.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "kernels/tensor_stats/tensor_stats.h"

namespace te::train {

SwigluAlignment::SwigluAlignment(const config::ModelConfig& model,
                                 const parameters::ParameterStore& parameters) {
  if (model.activation != config::ActivationKind::swiglu) return;
  for (const parameters::Parameter& parameter : parameters.parameters())
    if (parameter.id.role == ParameterRole::linear_fc1 && parameter.id.part == ParameterPart::weight &&
        parameter.trainable)
      weights_.push_back({parameter.id.layer, &parameter});
}

void SwigluAlignment::plan(MemoryPlan& plan) {
  if (weights_.empty()) return;
  plan.add(cosines_, "swiglu_alignment", MemoryKind::fp8_state, DType::f32,
           {static_cast<int64_t>(weights_.size()), weights_.front().parameter->shape[0] / 2});
}

std::vector<LayerAlignment> SwigluAlignment::measure(
    const Context& context, const std::function<void(const parameters::Parameter&)>& before) const {
  if (weights_.empty()) return {};
  const int64_t channels = cosines_.cols();
  std::vector<float> cosines(static_cast<size_t>(cosines_.numel()));
  for (size_t i = 0; i < weights_.size(); ++i) {
    const Tensor row = cosines_.slice_rows(static_cast<int64_t>(i), 1).view({channels});
    const parameters::Parameter& weight = *weights_[i].parameter;
    if (before) before(weight);
    kernels::row_alignment(context, {.x = weight.has_value ? weight.value : weight.main, .out = row});
  }
  context.copy_to_host(cosines.data(), cosines_);
  context.synchronize();
  std::vector<LayerAlignment> result;
  for (size_t i = 0; i < weights_.size(); ++i) {
    LayerAlignment& layer =
        result.emplace_back(LayerAlignment{.layer = weights_[i].layer, .channels = channels});
    for (int64_t c = 0; c < channels; ++c) {
      const double cosine =
          std::abs(static_cast<double>(cosines[i * static_cast<size_t>(channels) + static_cast<size_t>(c)]));
      layer.mean += cosine / static_cast<double>(channels);
      layer.max = std::max(layer.max, cosine);
    }
  }
  return result;
}

}  // namespace te::train
