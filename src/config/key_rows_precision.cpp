// The keys of number formats. See key_table.h for what each column means.
#include "config/key_rows.h"

namespace te::config {
namespace {

const auto kPrecisionRows = std::to_array<Key>({
    {TE_KEY(precision.dtype), kBuiltIn, kAny,
     "Activations, working weights and GEMMs that are not FP8 ([dtypes.md](dtypes.md))."},
    {TE_KEY(precision.tf32), kBuiltIn, kAny,
     "`dtype: fp32` on a GPU: GEMMs round what they multiply to TF32 (10 bits of mantissa), for several "
     "times the "
     "speed. `false` multiplies in FP32."},
    {TE_KEY(precision.loss_scale), kBuiltIn, at_least(0),
     "`dtype: fp16`: losses are multiplied by this, so that small gradients do not vanish; the update is of "
     "gradients "
     "divided by it. 0 is a scale that finds its size, by the next four keys ([dtypes.md](dtypes.md#fp16))."},
    {TE_KEY(precision.initial_loss_scale), "65536, or min_loss_scale where that is larger", above(0),
     "`loss_scale: 0`: the scale of the first step."},
    {TE_KEY(precision.min_loss_scale), "1, or initial_loss_scale where that is smaller", above(0),
     "`loss_scale: 0`: the scale falls no lower. At most `initial_loss_scale`."},
    {TE_KEY(precision.loss_scale_window), kBuiltIn, from_to(1, kMaxSteps),
     "`loss_scale: 0`: after so many steps in a row with finite gradients the scale is doubled."},
    {TE_KEY(precision.hysteresis), kBuiltIn, from_to(1, 1000),
     "`loss_scale: 0`: steps without finite gradients, which are left out, before the scale is halved; from "
     "then "
     "on, until it has grown again, each halves it."},
    {TE_KEY(precision.fp8), kBuiltIn, kAny,
     "FP8 GEMMs of the transformer layers: `hybrid` is E4M3 forward and E5M2 for gradients, `e4m3` "
     "is E4M3 for both."},
    {TE_KEY(precision.fp8_recipe), kBuiltIn, kAny,
     "How scales are found: `delayed` from the amaxes of past steps; from the values themselves, "
     "`tensorwise` one per "
     "tensor, `rowwise` one per token or channel, `blockwise` one per 1 x 128 values (weights: 128 x 128)."},
    {TE_KEY(precision.fp8_scale_format), kBuiltIn, kAny,
     "`rowwise` and `blockwise`: scales are rounded down to powers of two, or kept as FP32 numbers."},
    {TE_KEY(precision.fp8_tensorwise_scale_format), kBuiltIn, kAny,
     "The same of `tensorwise`. A power of two is as a rule that of the last cast, so that operands are cast "
     "with it while they are made, as with `delayed`, and again where it has changed: faster, other "
     "numbers."},
    {TE_KEY(precision.fp8_keep_weights), kBuiltIn, kAny,
     "Forms of FP8 weights that are kept from pass to pass, a byte a parameter each; the others are made "
     "again right before a GEMM reads them, which changes no number: `none`, `rowwise` (what the forward "
     "pass reads), `both` (the fastest). `auto` is `none` with `optimizer.store_param_remainders` and with "
     "`parallel.shard: parameters` (but for weights that travel in FP8, `parallel.fp8_param_gather`), else "
     "`rowwise`."},
    {TE_KEY(precision.amax_history_len), kBuiltIn, from_to(1, kMaxWidth),
     "`delayed`: steps of amax history."},
    {TE_KEY(precision.amax_compute_algo), kBuiltIn, kAny,
     "`delayed`: the scale follows the maximum of the history or its most recent entry."},
    {TE_KEY(precision.margin), kBuiltIn, from_to(0, 64),
     "Headroom in powers of two: scales are divided by 2^margin."},
    {TE_KEY(precision.fp8_recast), kBuiltIn, kAny,
     "`delayed`: inputs and gradients whose values outgrow the scale of earlier steps are cast again with "
     "the "
     "scale that their own amax asks for, so that nothing saturates. `false`: they saturate."},
    {TE_KEY(precision.first_layers_bf16), kBuiltIn, from_to(0, 10000),
     "Layers at the input that stay in BF16."},
    {TE_KEY(precision.last_layers_bf16), kBuiltIn, from_to(0, 10000),
     "Layers at the output that stay in BF16."},
    {TE_KEY(precision.overrides), kBuiltIn, kAny,
     "Rules for single linears, layers, GEMMs and operands, one a line or separated by semicolons: "
     "`linear_fc2 wgrad: "
     "bf16; layers 0-1: blockwise` (docs/fp8.md). Without effect with `fp8: off`.",
     "empty or rules"},
    {TE_KEY(precision.fp8_output_layer), kBuiltIn, kAny,
     "With FP8: the GEMMs of the output layer, too. Faster where the vocabulary is large beside the "
     "model; the gradient of the logits, most of it tiny, then has the range of one tensor's E5M2 (E4M3 with "
     "`fp8: e4m3`)."},
    {TE_KEY(precision.fp8_calibrate), kBuiltIn, kAny,
     "With `fp8: off`: record the amaxes that an FP8 run would see, so that FP8 can take over at any step."},
    {TE_KEY(precision.fp8_calibration_passes), kBuiltIn, from_to(0, 1000),
     "`delayed`: microbatches that run before step 1, with scales of their own, to fill the amax history, so "
     "that step 1 has the right scales; likewise before the first step in FP8 behind steps in BF16, or "
     "behind "
     "a checkpoint without scales. 0 is Transformer Engine's behaviour: step 1 runs at scale 1."},
    {TE_KEY(precision.fp8_from_step), kBuiltIn, from_to(0, kMaxSteps),
     "The first step in FP8; the steps before it are taken in BF16. 0 is step 1."},
    {TE_KEY(precision.fp8_until_step), kBuiltIn, from_to(0, kMaxSteps),
     "The last step in FP8; the steps after it are taken in BF16. 0 is the run's last. At least "
     "`fp8_from_step`."},
});

}  // namespace

std::span<const Key> precision_rows() {
  return kPrecisionRows;
}

}  // namespace te::config
