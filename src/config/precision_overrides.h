// precision.overrides: the precision of single linears, layers, GEMMs and operands, where it differs from that of the
// model. The text consists of rules, one per line or separated by semicolons; later rules take precedence:
//
//   linear_fc2 wgrad: bf16          the weight-gradient GEMM of every layer's linear_fc2 in BF16
//   linear_fc2 input: bf16          every GEMM that reads linear_fc2's input: fprop and wgrad
//   layers 0-1, -1: bf16            the first two layers and the last
//   linear_qkv, linear_proj: blockwise
//   grad_output: e4m3               the format of one operand
//   output_layer: tensorwise        the output layer; rules apply to it only if they name it
//
// A comment extends from # to the end of the line. The text before the colon selects linears, layers, GEMMs and
// operands (all of a kind that is not named); the text after it is a recipe, a format or bf16.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"
#include "core/dtype.h"
#include "core/parameter_id.h"

namespace te::config {

/// The precision of the three GEMMs of a linear. A GEMM that is not quantized reads operands of precision.dtype.
struct LinearPrecision {
  bool fprop = false, dgrad = false, wgrad = false;  ///< true: FP8
  Fp8Recipe recipe = Fp8Recipe::delayed;
  bool emulated = false;  ///< is_emulated(): GEMMs multiply rounded values in precision.dtype
  DType input = DType::e4m3, weight = DType::e4m3, grad_output = DType::e5m2;

  bool quantized() const { return fprop || dgrad || wgrad; }
  bool operator==(const LinearPrecision&) const = default;
};

LinearPrecision linear_precision(const PrecisionConfig& precision, const LinearId& linear,
                                 int64_t num_layers);

/// The precision with FP8 (hybrid) on if it is off: the precision of an FP8 run with this config.
PrecisionConfig as_quantized(PrecisionConfig precision);

/// One line per linear and range of layers with the same precision; for the log at the start of a run.
std::string precision_table(const PrecisionConfig& precision, int64_t num_layers);

/// UserError, with precision.overrides and the rule, if a rule is invalid or a GEMM would have two E5M2 operands.
void check_overrides(const PrecisionConfig& precision, int64_t num_layers);

/// The recipes of the quantized linears, each once.
std::vector<Fp8Recipe> recipes_of(const PrecisionConfig& precision, int64_t num_layers);

/// The names of the emulated ones, separated by commas.
std::string emulated_recipes(const PrecisionConfig& precision, int64_t num_layers);

/// The rules of a text, without comments and surrounding blanks.
std::vector<std::string> override_rules(const std::string& overrides);

/// The rules with recipes that have a history replaced by tensorwise, for passes without FP8 state.
std::string stateless_overrides(const std::string& overrides);

}  // namespace te::config
