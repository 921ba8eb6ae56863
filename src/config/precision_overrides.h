// precision.overrides: which precision single linears, layers, GEMMs and operands have, where it differs from that of
// the whole model. A text of rules, one a line or separated by semicolons; later ones win:
//
//   linear_fc2 wgrad: bf16          the GEMM dW of every layer's linear_fc2 in BF16
//   linear_fc2 input: bf16          every GEMM that reads linear_fc2's input: fprop and wgrad
//   layers 0-1, -1: bf16            the first two layers and the last
//   linear_qkv, linear_proj: blockwise
//   grad_output: e4m3               the format of one operand
//   output_layer: tensorwise        the output layer, FP8 or not, has rules that name it alone
//
// From a # to the end of its line is a comment. What stands before the colon selects (nothing of a kind: all of it),
// what stands behind it is a recipe, a format or bf16.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "core/dtype.h"

namespace te::config {

/// What the three GEMMs of one linear run in. A GEMM that is not quantized reads operands of precision.dtype.
struct LinearPrecision {
  bool fprop = false, dgrad = false, wgrad = false;  ///< true: FP8
  Fp8Recipe recipe = Fp8Recipe::delayed;
  DType input = DType::e4m3, weight = DType::e4m3, grad_output = DType::e5m2;

  bool quantized() const { return fprop || dgrad || wgrad; }
  bool operator==(const LinearPrecision&) const = default;
};

/// Names of the linears of a layer, in the order of the forward pass; behind them that of the output layer.
extern const std::vector<std::string_view> kLinearNames;
constexpr std::string_view kOutputLayerName = "output_layer";

/// What `linear` (a name of kLinearNames) of layer `layer` runs in; the layer of the output layer is not looked at.
LinearPrecision linear_precision(const PrecisionConfig& precision, std::string_view linear, int64_t layer,
                                 int64_t num_layers);

/// The same precision with FP8 on where it is off: what an FP8 run would quantize.
PrecisionConfig as_quantized(PrecisionConfig precision);

/// One line per kind of linear and range of layers that run in the same; for the start of a run.
std::string precision_table(const PrecisionConfig& precision, int64_t num_layers);

/// UserError with precision.overrides and the rule where the text has no meaning, or a GEMM would get two E5M2
/// operands.
void check_overrides(const PrecisionConfig& precision, int64_t num_layers);

/// The rules of a text one by one, without comments and the blanks around them.
std::vector<std::string> override_rules(const std::string& overrides);

/// The rules with every recipe that needs state replaced: for passes that have none.
std::string stateless_overrides(const std::string& overrides);

}  // namespace te::config
