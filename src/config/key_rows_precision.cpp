// The keys of number formats. See key_table.h for what each column means.
#include "config/key_rows.h"

namespace te::config {
namespace {

const auto kPrecisionRows = std::to_array<Key>({
    {TE_KEY(precision.dtype), kBuiltIn, kAny,
     "Number format of activations, compute weights and non-FP8 GEMMs ([reference/dtypes.md](dtypes.md))."},
    {TE_KEY(precision.tf32), kBuiltIn, kAny,
     "With `dtype: fp32` on a GPU: GEMMs use TF32 (10 mantissa bits), several times faster than FP32."},
    {TE_KEY(precision.loss_scale), kBuiltIn, at_least(0),
     "Loss scale of FP16 training; 0 is dynamic loss scaling ([reference/dtypes.md](dtypes.md))."},
    {TE_KEY(precision.initial_loss_scale), kBuiltIn, at_least(1),
     "Dynamic loss scaling: scale of the first step."},
    {TE_KEY(precision.fp8), kBuiltIn, kAny,
     "FP8 GEMMs in the transformer layers: `hybrid` uses E4M3 forward and E5M2 for gradients, `e4m3` uses "
     "E4M3 for both."},
    {TE_KEY(precision.fp8_recipe), kBuiltIn, kAny,
     "FP8 scaling: `delayed` (amax history), or current scaling per tensor, row, 1 x 128 block (weights: 128 "
     "x 128), 32 (`mxfp8`) or 16 values (`nvfp4`)."},
    {TE_KEY(precision.fp8_scale_format), kBuiltIn, kAny,
     "Scale format of `tensorwise`, `rowwise` and `blockwise`: rounded down to powers of two, or FP32, with "
     "which `tensorwise` "
     "cannot reuse scales and is slower."},
    {TE_KEY(precision.fp8_keep_weights), kBuiltIn, kAny,
     "FP8 weight layouts kept between passes, 1 byte per parameter each: `none`, `rowwise` "
     "(for the forward "
     "pass) or `both`; others are requantized when needed."},
    {TE_KEY(precision.nvfp4_parts), kBuiltIn, kAny,
     "`nvfp4`: 16 x 16 blocks for weights, Hadamard transform of the wgrad operands, stochastic rounding of "
     "gradients.",
     "a list of `blocks`, `hadamard`, `stochastic`"},
    {TE_KEY(precision.amax_history_len), kBuiltIn, from_to(1, kMaxWidth),
     "`delayed`: length of the amax history in steps."},
    {TE_KEY(precision.amax_compute_algo), kBuiltIn, kAny,
     "`delayed`: compute the scale from the maximum of the history or from its most recent entry."},
    {TE_KEY(precision.margin), kBuiltIn, from_to(0, 64),
     "Headroom in powers of two: scales are divided by 2^margin."},
    {TE_KEY(precision.fp8_recast), kBuiltIn, kAny,
     "`delayed`: requantize inputs and gradients that overflow the delayed scale with their own amax; "
     "`false` lets them saturate."},
    {TE_KEY(precision.first_layers_bf16), kBuiltIn, from_to(0, 10000),
     "Number of first layers that stay in BF16."},
    {TE_KEY(precision.last_layers_bf16), kBuiltIn, from_to(0, 10000),
     "Number of last layers that stay in BF16."},
    {TE_KEY(precision.overrides), kBuiltIn, kAny,
     "Precision rules by linear, layer, GEMM or operand, separated by semicolons or lines: `linear_fc2 "
     "wgrad: bf16; layers 0-1: blockwise` ([reference/fp8-recipes.md](fp8-recipes.md)).",
     "empty or rules"},
    {TE_KEY(precision.fp8_output_layer), kBuiltIn, kAny,
     "Run the output layer's GEMMs in FP8, too: faster with a large vocabulary, but small logit gradients "
     "may underflow."},
    {TE_KEY(precision.fp8_calibrate), kBuiltIn, kAny,
     "With `fp8: off`: record the amax history, so that FP8 can start at any step."},
    {TE_KEY(precision.fp8_from_step), kBuiltIn, from_to(0, kMaxSteps),
     "First step in FP8, with BF16 before it; 0 is step 1."},
    {TE_KEY(precision.fp8_until_step), kBuiltIn, from_to(0, kMaxSteps),
     "Last step in FP8, with BF16 after it; 0 is the run's last, otherwise at least `fp8_from_step`."},
});

}  // namespace

std::span<const Key> precision_rows() {
  return kPrecisionRows;
}

}  // namespace te::config
