#include "fp8/scaling.h"

#include <algorithm>
#include <source_location>

namespace te::fp8 {
namespace {

using config::Fp8Recipe;
using config::Fp8ScaleFormat;
using config::PrecisionConfig;
using kernels::ScaleLayout;

/// Transformer Engine's DelayedScaling, updated once per optimizer step. With fp8_recast, inputs and gradients that
/// overflow their scale are requantized with their current scale. Weights are quantized once per step from memory; they
/// use their current scale, so that no update can overflow it.
class Delayed final : public Scaling {
 public:
  explicit Delayed(const PrecisionConfig& precision)
      : Scaling(false), requantizes_(precision.fp8_recast), history_len_(precision.amax_history_len) {}
  ScaleLayout layout(OperandRole) const override { return ScaleLayout::tensor; }
  ScaleSource source(OperandRole role) const override {
    if (role == OperandRole::weight) return ScaleSource::current;
    return requantizes_ ? ScaleSource::corrected : ScaleSource::given;
  }
  int64_t history_len() const override { return history_len_; }

 private:
  bool requantizes_;
  int64_t history_len_;
};

/// Transformer Engine's Float8CurrentScaling. A producer computes the amax in a first launch and quantizes in a second
/// one.
class Tensorwise final : public Scaling {
 public:
  explicit Tensorwise(const PrecisionConfig& precision)
      : Scaling(precision.fp8_scale_format == Fp8ScaleFormat::power_of_two) {}
  ScaleLayout layout(OperandRole) const override { return ScaleLayout::tensor; }
};

/// A scale per row of each layout, as in torchao's rowwise recipe.
class Rowwise final : public Scaling {
 public:
  explicit Rowwise(const PrecisionConfig& precision)
      : Scaling(precision.fp8_scale_format == Fp8ScaleFormat::power_of_two) {}
  ScaleLayout layout(OperandRole) const override { return ScaleLayout::rows; }
};

/// A scale per 1 x 128 values of activations and gradients, and per 128 x 128 values of weights: Transformer Engine's
/// Float8BlockScaling.
class Blockwise final : public Scaling {
 public:
  explicit Blockwise(const PrecisionConfig& precision)
      : Scaling(precision.fp8_scale_format == Fp8ScaleFormat::power_of_two) {}
  ScaleLayout layout(OperandRole role) const override {
    return role == OperandRole::weight ? ScaleLayout::blocks : ScaleLayout::vectors;
  }
  /// The columnwise layout needs all tokens of a column's group, so a rank's runs of tokens must be complete groups.
  bool gathers_quantized(const parallel::TensorParallel& ranks, int64_t tokens) const override {
    const std::vector<parallel::TokenRange> runs = ranks.ranges(tokens);
    return std::ranges::all_of(runs, [](const parallel::TokenRange& run) {
      return run.begin % kernels::kScaleBlock == 0 && run.count % kernels::kScaleBlock == 0;
    });
  }
};

}  // namespace

std::unique_ptr<Scaling> make_scaling(Fp8Recipe recipe, const PrecisionConfig& precision) {
  switch (recipe) {
    case Fp8Recipe::delayed:
      return std::make_unique<Delayed>(precision);
    case Fp8Recipe::tensorwise:
      return std::make_unique<Tensorwise>(precision);
    case Fp8Recipe::rowwise:
      return std::make_unique<Rowwise>(precision);
    case Fp8Recipe::blockwise:
      return std::make_unique<Blockwise>(precision);
    case Fp8Recipe::mxfp8:
      return make_mxfp8_scaling(precision);
    case Fp8Recipe::nvfp4:
      return make_nvfp4_scaling(precision);
  }
  internal_error("a recipe has no scaling", std::source_location::current());
}

}  // namespace te::fp8
