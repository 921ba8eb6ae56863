// FLOPs of a training step, for TFLOP/s, MFU and the speed-of-light time in the logs.
#pragma once

#include <cstdint>

#include "config/config.h"

namespace te::train {

/// Forward and backward FLOPs per token, by the precision of their GEMMs in an FP8 step.
struct TokenFlops {
  double fp8 = 0;             ///< GEMMs of linears that precision and its overrides quantize, not emulated
  double high_precision = 0;  ///< the others, with attention, router and adapters
  double total() const { return fp8 + high_precision; }
};

/// 6 x parameters of the GEMMs (layers and output layer, without the input embedding) that a token uses, plus causal
/// attention, 6 x layers x seq x heads x head_dim: half of the full score and value GEMMs. With a sliding window w <
/// seq, w (2 seq - w) / seq replaces seq. Weights that are not trained have no wgrad, a third of their FLOPs; an
/// adapter adds its own. Recomputation does not count.
TokenFlops token_flops(const config::Config& config);

double flops_per_token(const config::Config& config);
/// FLOPs per token of a run that trains all weights.
double flops_per_token(const config::ModelConfig& model);

}  // namespace te::train
