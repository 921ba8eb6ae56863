// Interface of the second sublayer of a transformer layer, between its norm and the residual add. Layers use only this
// interface; a FeedForwardFactory creates the implementation (make_feed_forward(): Mlp) from the layer's config.
//
// An implementation defines the tensors that a microbatch saves for the backward pass (Activations) and the gradients
// of its linear layers' outputs (Gradients). Layers own these objects and pass them to the sublayer that created them.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/memory_plan.h"
#include "kernels/gemm/decode_megakernel.h"
#include "model/layer_config.h"
#include "model/linear.h"
#include "model/pass.h"

namespace te::model {

/// Routing of one layer's experts in the current step, kernels/moe/router.h: i32 [experts] and fp32 [kRouterSums].
struct RoutingStatistics {
  Tensor counts, sums;
  int64_t* rounds = nullptr;  ///< on the host: rounds of all dispatches (model/expert_dispatch.h)
};

class FeedForward {
 public:
  /// Contains planned tensors, so it is neither copied nor moved.
  class Activations {
   public:
    Activations() = default;
    Activations(const Activations&) = delete;
    virtual ~Activations() = default;
  };
  class Gradients {
   public:
    Gradients() = default;
    Gradients(const Gradients&) = delete;
    virtual ~Gradients() = default;
  };
  virtual ~FeedForward() = default;

  // --- memory ---
  virtual std::unique_ptr<Activations> make_activations() const = 0;
  virtual std::unique_ptr<Gradients> make_gradients() const = 0;
  virtual void plan_weights(MemoryPlan& plan, bool training) = 0;
  virtual void plan_scratch(MemoryPlan& plan) = 0;
  virtual void plan_activations(MemoryPlan& plan, Activations& activations) const = 0;
  /// `deferred`: the operands of wgrad() are not scratch.
  virtual void plan_gradients(MemoryPlan& plan, Gradients& gradients, bool deferred) const = 0;
  /// For inference: plans activations of up to `rows` rows, without the input; layers share the memory.
  virtual void plan_inference(MemoryPlan& plan, Activations& activations, int64_t rows) const = 0;
  /// The first `rows` rows of activations that plan_inference() planned, with their input [rows, hidden].
  virtual std::unique_ptr<Activations> first_rows(const Activations& activations, const Tensor& input,
                                                  int64_t rows) const = 0;
  /// The last step of the backward pass that reads d_output.
  virtual Step last_gradient_read() const { return Step::fc2_backward; }
  /// Width of the widest input of a linear layer on this rank, for share_input_layouts().
  virtual int64_t max_input_width() const = 0;
  /// Places the linear layers' quantized inputs in shared memory, for passes that save nothing.
  virtual void share_input_layouts(Activations& activations, const Tensor& values,
                                   const Tensor& scales) const = 0;

  /// Before training passes: memory of the layer's statistics. Only mixtures of experts have them.
  virtual void bind_routing(const RoutingStatistics& /*statistics*/) {}
  /// Once per step, after its passes and before the optimizer's update: changes the master values of the router's bias
  /// by the statistics' counts, which are those of the global batch. *skip != 0 (device): no change.
  virtual void update_router_bias(const Context& /*context*/, const parameters::ParameterStore& /*store*/,
                                  const int32_t* /*skip*/) const {}

  // --- passes ---
  virtual void quantize_weights(const Context& context, bool count) = 0;
  /// For the producer of the input x [residual_rows, hidden].
  virtual OperandRequest input_request(Activations& activations, const Pass& pass) = 0;
  /// y [residual_rows, hidden] from x; starts in Step::fc1.
  virtual void forward(const Context& context, Activations& activations, const ProducedOperand& x,
                       const Tensor& y, const Pass& pass) = 0;
  /// For the producer of dy, which keeps dy in its own memory.
  virtual OperandRequest grad_request(Gradients& gradients, const Pass& pass) const = 0;
  /// dx [residual_rows, hidden] from dy [residual_rows, hidden]; starts in Step::fc2_backward. `recompute_input`, if
  /// not empty, recomputes the input. `deferred`: wgrad() computes the weight gradients later.
  virtual void backward(const Context& context, const ProducedOperand& dy, Activations& activations,
                        Gradients& gradients, const Tensor& dx, const Pass& pass, bool deferred,
                        const RecomputeInput& recompute_input) = 0;
  virtual void wgrad(const Context& context, const Activations& activations,
                     const Gradients& gradients) const = 0;

  /// The sublayer as two GEMMs of the decode megakernel (kernels/gemm/decode_megakernel.h): the first includes the
  /// activation but not the norm before it. Empty if the sublayer is not two GEMMs.
  struct MegakernelGemms {
    kernels::MegakernelGemm first, second;
  };
  virtual std::optional<MegakernelGemms> megakernel_gemms(const Activations& /*activations*/) const {
    return std::nullopt;
  }
};

/// Creates the sublayer of layer `layer_name` ("layers.3") with the given index.
using FeedForwardFactory = std::function<std::unique_ptr<FeedForward>(
    const std::string& layer_name, int index, const LayerConfig& config,
    parameters::ParameterStore& parameters, Recipe& recipe, parallel::TensorParallel& tensor)>;
/// The factory of a config's model.
std::unique_ptr<FeedForward> make_feed_forward(const std::string& layer_name, int index,
                                               const LayerConfig& config,
                                               parameters::ParameterStore& parameters, Recipe& recipe,
                                               parallel::TensorParallel& tensor);

}  // namespace te::model
