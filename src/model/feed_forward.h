// The second sublayer of a transformer layer, between its norm and the residual add, as an interface: a layer knows no
// more of it than this, and make_feed_forward() decides from the layer's config what it is (Mlp).
//
// A feed-forward sublayer defines what a microbatch leaves for its backward pass (Activations) and where the gradients
// of its linears' outputs are (Gradients). Layers only keep them, and pass them to the sublayer that made them.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "core/memory_plan.h"
#include "kernels/gemm/decode_megakernel.h"
#include "model/layer_config.h"
#include "model/linear.h"
#include "model/pass.h"

namespace te::model {

class FeedForward {
 public:
  /// Planned tensors: neither copied nor moved.
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
  /// `deferred`: what wgrad() will read has memory of its own.
  virtual void plan_gradients(MemoryPlan& plan, Gradients& gradients, bool deferred) const = 0;
  /// For inference: activations of up to `rows` rows, without the input, which all layers with such a sublayer share.
  virtual void plan_inference(MemoryPlan& plan, Activations& activations, int64_t rows) const = 0;
  /// The first `rows` rows of activations that plan_inference() planned, with their input [rows, hidden].
  virtual std::unique_ptr<Activations> first_rows(const Activations& activations, const Tensor& input,
                                                  int64_t rows) const = 0;
  /// The linears' quantized inputs in memory that they share: for passes that keep nothing.
  virtual void share_input_layouts(Activations& activations, const Tensor& values,
                                   const Tensor& scales) const = 0;

  // --- passes ---
  virtual void quantize_weights(const Context& context, bool count) = 0;
  /// For the producer of the input x [stream, hidden].
  virtual Target input_target(Activations& activations, const Pass& pass) = 0;
  /// y [stream, hidden] from the input that was written to the target; begins in Step::fc1.
  virtual void forward(const Context& context, Activations& activations, const Tensor& y,
                       const Pass& pass) = 0;
  /// For the producer of dy, which keeps it itself.
  virtual Target grad_target(Gradients& gradients, const Pass& pass) const = 0;
  /// dx [stream, hidden] from dy [stream, hidden]; begins in Step::fc2_backward. recompute_input, where it is given,
  /// writes the input again. `deferred`: the weights' gradients are left to wgrad().
  virtual void backward(const Context& context, const Tensor& dy, Activations& activations,
                        Gradients& gradients, const Tensor& dx, const Pass& pass, bool deferred,
                        const RecomputeInput& recompute_input) = 0;
  virtual void wgrad(const Context& context, const Activations& activations,
                     const Gradients& gradients) const = 0;

  /// The sublayer as two GEMMs of a decode megakernel (kernels/gemm/decode_megakernel.h), the first with the activation
  /// and without its norm; nothing when it is not two GEMMs.
  struct MegakernelGemms {
    kernels::MegakernelGemm first, second;
  };
  virtual std::optional<MegakernelGemms> megakernel_gemms(const Activations& /*activations*/) const {
    return std::nullopt;
  }
};

/// The sublayer of the layer `layer_name` ("layers.3"), its `index`-th.
std::unique_ptr<FeedForward> make_feed_forward(const std::string& layer_name, int index,
                                               const LayerConfig& config,
                                               parameters::ParameterStore& parameters, Recipe& recipe,
                                               parallel::TensorParallel& tensor);

}  // namespace te::model
