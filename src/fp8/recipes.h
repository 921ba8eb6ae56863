// The three recipes; see recipe.h for what they are.
#pragma once

#include "fp8/recipe.h"

namespace te::fp8 {

/// Scales from a history of amaxes. What TE calls DelayedScaling, updated once per optimizer step.
class DelayedRecipe : public Recipe {
 public:
  DelayedRecipe(const config::PrecisionConfig& precision, int num_layers) : Recipe(precision, num_layers) {}
  const char* name() const override { return "delayed"; }
  bool quantizes() const override { return true; }
  bool fused() const override { return true; }
  bool starts_from_history() const override { return true; }
  void update(const Context& context, const int32_t* skip) override;

 protected:
  void cast(const Context& context, int index, Operand& operand, QuantizeMode mode,
            const ColumnSums& sums) override;
  int history_len() const override { return static_cast<int>(precision_.amax_history_len); }
};

/// BF16 (or FP32) operands. With fp8_calibrate it keeps the state that `delayed` would have, so that FP8 can
/// take over.
class OffRecipe final : public DelayedRecipe {
 public:
  OffRecipe(const config::PrecisionConfig& precision, int num_layers)
      : DelayedRecipe(precision, num_layers) {}
  const char* name() const override { return "off"; }
  bool quantizes() const override { return false; }
  bool fused() const override { return false; }
  bool starts_from_history() const override { return false; }

 protected:
  void cast(const Context& context, int index, Operand& operand, QuantizeMode mode,
            const ColumnSums& sums) override;
};

/// Scales from the tensor itself. What TE calls Float8CurrentScaling.
class TensorwiseRecipe final : public Recipe {
 public:
  TensorwiseRecipe(const config::PrecisionConfig& precision, int num_layers)
      : Recipe(precision, num_layers) {}
  const char* name() const override { return "tensorwise"; }
  bool quantizes() const override { return true; }
  void update(const Context& context, const int32_t* skip) override;

 protected:
  void cast(const Context& context, int index, Operand& operand, QuantizeMode mode,
            const ColumnSums& sums) override;
};

}  // namespace te::fp8
