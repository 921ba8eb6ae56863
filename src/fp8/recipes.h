// The recipes that recipe.h describes.
#pragma once

#include <map>
#include <memory>
#include <source_location>

#include "fp8/recipe.h"

namespace te::fp8 {

/// Scales from a history of amaxes: Transformer Engine's DelayedScaling, updated once per optimizer step. With
/// fp8_recast, inputs and gradients that overflow their scale are requantized with their current scale.
class DelayedRecipe : public Recipe {
 public:
  DelayedRecipe(const config::PrecisionConfig& precision, int num_layers) : Recipe(precision, num_layers) {}
  const char* name() const override { return "delayed"; }
  bool quantizes() const override { return true; }
  bool fused() const override { return true; }
  bool needs_calibration() const override { return true; }
  bool requantizes() const override { return precision_.fp8_recast && quantizes(); }
  void update(const Context& context, const int32_t* skip) override;

 protected:
  CastScale cast_scale(int index) const override;
  Tensor current_amax_of(int index) const override {
    return table().last_amax.slice_rows(index, 1).view({1});
  }
  void cast(const Context& context, int index, Operand& operand, QuantizeMode mode,
            const ColumnSums& sums) override;
  void bypass_quantization(const Context& context, int index, Operand& operand, QuantizeMode mode,
                           const ColumnSums& sums) override;
  int history_len() const override { return static_cast<int>(precision_.amax_history_len); }
};

/// BF16 (or FP32) operands. With fp8_calibrate it keeps the state of `delayed`, so that a later run can use FP8.
class OffRecipe final : public DelayedRecipe {
 public:
  OffRecipe(const config::PrecisionConfig& precision, int num_layers)
      : DelayedRecipe(precision, num_layers) {}
  const char* name() const override { return "off"; }
  bool quantizes() const override { return false; }
  bool fused() const override { return false; }
  bool needs_calibration() const override { return false; }

 protected:
  void cast(const Context& context, int index, Operand& operand, QuantizeMode mode,
            const ColumnSums& sums) override;
};

/// Scales from the tensor's current amax: Transformer Engine's Float8CurrentScaling. A producer computes the amax in a
/// first launch and quantizes in a second one.
class TensorwiseRecipe final : public Recipe {
 public:
  TensorwiseRecipe(const config::PrecisionConfig& precision, int num_layers)
      : Recipe(precision, num_layers) {}
  const char* name() const override { return "tensorwise"; }
  bool quantizes() const override { return true; }
  bool fused() const override { return true; }
  bool requantizes() const override { return has_power_of_two_scales(); }
  void update(const Context& context, const int32_t* skip) override;

 protected:
  CastScale cast_scale(int) const override { return CastScale::current; }
  bool has_power_of_two_scales() const override {
    return precision_.fp8_scale_format == config::Fp8ScaleFormat::power_of_two;
  }
  void cast(const Context& context, int index, Operand& operand, QuantizeMode mode,
            const ColumnSums& sums) override;
};

/// A current scale per group of values: one pass over x writes both layouts with separate scales. The columnwise layout
/// needs all tokens of a column's group; if several ranks have them, the ranks gather high-precision rows.
class GroupRecipe : public Recipe {
 public:
  bool quantizes() const override { return true; }
  bool gathers_quantized(const parallel::TensorParallel&, int64_t) const override { return false; }
  void update(const Context& context, const int32_t* skip) override;

 protected:
  GroupRecipe(const config::PrecisionConfig& precision, int num_layers) : Recipe(precision, num_layers) {}
  void cast(const Context& context, int index, Operand& operand, QuantizeMode mode,
            const ColumnSums& sums) override;
};

/// A scale per row of each layout, as in torchao's rowwise recipe.
class RowwiseRecipe final : public GroupRecipe {
 public:
  RowwiseRecipe(const config::PrecisionConfig& precision, int num_layers)
      : GroupRecipe(precision, num_layers) {}
  const char* name() const override { return "rowwise"; }
  kernels::ScaleLayout scale_layout(OperandRole role) const override {
    return layout_of(config::Fp8Recipe::rowwise, role);
  }
};

/// A scale per 1 x 128 values of activations and gradients, and per 128 x 128 values of weights: Transformer Engine's
/// Float8BlockScaling.
class BlockwiseRecipe final : public GroupRecipe {
 public:
  BlockwiseRecipe(const config::PrecisionConfig& precision, int num_layers)
      : GroupRecipe(precision, num_layers) {}
  const char* name() const override { return "blockwise"; }
  /// True if a rank's runs of tokens consist of complete groups.
  bool gathers_quantized(const parallel::TensorParallel& ranks, int64_t tokens) const override;
  kernels::ScaleLayout scale_layout(OperandRole role) const override {
    return layout_of(config::Fp8Recipe::blockwise, role);
  }
};

/// Several recipes in one model: precision.overrides gives linear layers other recipes. All share one ScaleTable.
class MixedRecipe final : public Recipe {
 public:
  MixedRecipe(const config::PrecisionConfig& precision, int num_layers) : Recipe(precision, num_layers) {}
  const char* name() const override { return "mixed"; }
  bool quantizes() const override { return true; }
  bool needs_calibration() const override;
  bool requantizes() const override { return precision_.fp8_recast && needs_calibration(); }
  void begin_calibration() override;
  void end_calibration() override;
  void update(const Context& context, const int32_t* skip) override;

 protected:
  Recipe& recipe_of(config::Fp8Recipe kind) override;
  int history_len() const override;
  void cast(const Context&, int, Operand&, QuantizeMode, const ColumnSums&) override {
    internal_error("a mixed recipe does not quantize by itself", std::source_location::current());
  }

 private:
  std::map<config::Fp8Recipe, std::unique_ptr<Recipe>> recipes_;
};

/// A recipe for the complete model, without overrides.
std::unique_ptr<Recipe> make_plain_recipe(config::Fp8Recipe kind, const config::PrecisionConfig& precision,
                                          int num_layers);

}  // namespace te::fp8
