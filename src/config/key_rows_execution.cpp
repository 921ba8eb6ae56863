// The keys of how a run computes: ranks, batches, optimizer. See key_table.h for what each column means.
#include "config/key_rows.h"

namespace te::config {
namespace {

const auto kExecutionRows = std::to_array<Key>({
    {TE_KEY(parallel.ranks), kBuiltIn, from_to(0, 1048576),
     "Number of ranks (GPUs) the config is made for, which `--dry-run` and `--print-schedule` show; 0 is the "
     "fewest of the layout."},
    {TE_KEY(parallel.tensor), kBuiltIn, from_to(1, 1024),
     "Tensor-parallel size; must divide `num_query_groups` and `ffn_hidden_size`."},
    {TE_KEY(parallel.context), kBuiltIn, from_to(1, 1024),
     "Context-parallel size: ranks that each hold part of every sequence; twice this must divide "
     "`model.seq_length`."},
    {TE_KEY(parallel.pipeline), kBuiltIn, from_to(1, 1024), "Pipeline-parallel size (number of stages)."},
    {TE_KEY(parallel.expert), kBuiltIn, from_to(1, 1024),
     "Expert-parallel size: ranks that divide each layer's experts and exchange tokens; must divide "
     "`num_moe_experts` and tensor x context x data-parallel ranks."},
    {TE_KEY(parallel.moe_dispatch_factor), kBuiltIn, from_to(0.1, 1024),
     "With `expert`: tokens that a rank can receive at once, relative to a balanced load; more are "
     "received in rounds, so none is dropped."},
    {TE_KEY(parallel.sequence), kBuiltIn, kAny,
     "Sequence parallelism: shard the tokens of norms and residual stream across tensor-parallel ranks."},
    {TE_KEY(parallel.virtual_stages), "1, or 2 with schedule interleaved", from_to(1, 1024),
     "Model chunks per pipeline stage; above 1 needs `schedule: interleaved` or `zero_bubble`."},
    {TE_KEY(parallel.pipeline_split), kBuiltIn, kAny,
     "Layers per pipeline stage or virtual stage: `even`, `balanced` (by predicted time, output layer "
     "included), or a list such as `9,8,8,7`.",
     "`even`, `balanced` or a list of integers"},
    {TE_KEY(parallel.schedule), "1f1b, or interleaved with virtual_stages above 1", kAny,
     "Order of forward and backward passes over the stages; `te-train --print-schedule` draws it."},
    {TE_KEY(parallel.tensor_overlap), kBuiltIn, from_to(1, 64),
     "With `sequence`: chunks into which GEMMs next to tensor-parallel collectives are split to overlap "
     "communication; 1 disables, `tensor` is fastest."},
    {TE_KEY(parallel.transport), kBuiltIn, kAny,
     "With `sequence`, on GPUs: tensor-parallel communication by NCCL kernels, copy engines (NVLink within "
     "one host), or copy engines where `tensor_overlap` splits GEMMs (`auto`)."},
    {TE_KEY(parallel.shard), kBuiltIn, kAny,
     "Data-parallel sharding: `optimizer` (ZeRO-1), `gradients` too (ZeRO-2), `parameters` too (ZeRO-3, "
     "FSDP); less memory, more communication each."},
    {TE_KEY(parallel.bucket_size), kBuiltIn, from_to(1, 1e12),
     "Data parallelism: minimum number of parameters per gradient reduction."},
    {TE_KEY(parallel.timeout_seconds), kBuiltIn, from_to(0, kMaxSteps),
     "Seconds after which a rank that waits for others ends the job and names what it waited for; 0 "
     "disables."},

    {TE_KEY(training.micro_batch_size), kRequired, from_to(1, kMaxWidth),
     "Sequences per forward pass of a rank."},
    {TE_KEY(training.global_batch_size), kRequired, from_to(1, kMaxWidth),
     "Sequences per optimizer step; a multiple of `micro_batch_size` times the data-parallel size."},
    {TE_KEY(training.train_steps), kRequired, from_to(1, kMaxSteps), "Number of optimizer steps."},
    {TE_KEY(training.seed), kBuiltIn, at_least(0),
     "Seed of initial weights, data order, dropout and stochastic rounding.", "0 to 2^64 - 1"},
    {TE_KEY(training.recompute), kBuiltIn, kAny,
     "Activations to recompute in the backward pass: none, cheap ones (`selective`), or whole layers "
     "(`full`); gradients are bitwise equal."},
    {TE_KEY(training.deterministic), kBuiltIn, kAny,
     "Fixed summation order in cuDNN attention's backward pass, at about 1% of time and extra memory; "
     "te-train's own attention always has it."},
    {TE_KEY(training.gemm_autotune), kBuiltIn, kAny,
     "How GEMM algorithms are chosen: cuBLASLt's first candidate, cached choices only, cached or timing some "
     "candidates, or timing all of them."},
    {TE_KEY(training.device), kBuiltIn, kAny, "`auto` is `cuda` if a usable GPU is found, otherwise `cpu`."},
    {TE_KEY(training.eval_interval), kBuiltIn, from_to(0, kMaxSteps),
     "Steps between validations; 0 disables."},
    {TE_KEY(training.eval_microbatches), kBuiltIn, from_to(1, kMaxSteps), "Microbatches per validation."},
    {TE_KEY(training.early_stopping_patience), kBuiltIn, from_to(0, kMaxSteps),
     "Consecutive validations without improvement after which the run ends with exit code 0; 0 disables."},
    {TE_KEY(training.max_nonfinite_steps), kBuiltIn, from_to(1, kMaxSteps),
     "Consecutive steps with a non-finite loss or gradient, each skipped, after which the run stops; FP16 "
     "overflow steps do not count."},
    {TE_KEY(training.loss_spikes), kBuiltIn, kAny,
     "Action on a loss spike: `off`, `warn`, `skip` (discard the update) or `rollback` (restore the last "
     "good checkpoint, skip the data since)."},
    {TE_KEY(training.z_loss_coefficient), kBuiltIn, at_least(0),
     "Adds this times the mean of log(Z)^2 to the training objective (PaLM: 1e-4, OLMo 2: 1e-5); logged as "
     "`z_loss`, 0 disables."},
    {TE_KEY(training.neftune_noise_alpha), kBuiltIn, at_least(0),
     "Training adds uniform noise of at most this / sqrt(`seq_length` * `hidden_size`) to the embeddings "
     "(NEFTune: 5 to 15); 0 disables."},

    {TE_KEY(optimizer.name), kBuiltIn, kAny,
     "`adamw`, or `muon`, which orthogonalizes the momentum of the layers' matrices and uses AdamW for all "
     "other parameters."},
    {TE_KEY(optimizer.lr), kBuiltIn, above(0), "Peak learning rate."},
    {TE_KEY(optimizer.min_lr), "a tenth of lr", at_least(0),
     "Learning rate at the end of the decay; at most `lr`."},
    {TE_KEY(optimizer.warmup_steps), kBuiltIn, from_to(0, kMaxSteps), "Steps of linear warmup."},
    {TE_KEY(optimizer.decay), kBuiltIn, kAny,
     "Shape of the decay after warmup; `wsd` stays at `lr` and decays in the last `wsd_decay_steps`."},
    {TE_KEY(optimizer.decay_steps), "training.train_steps", from_to(1, kMaxSteps),
     "Step at which `min_lr` is reached, warmup included."},
    {TE_KEY(optimizer.wsd_decay_steps), "a tenth of decay_steps, at least 1", from_to(1, kMaxSteps),
     "`wsd`: length of the final decay in steps; at most `decay_steps`."},
    {TE_KEY(optimizer.weight_decay), kBuiltIn, at_least(0),
     "Decoupled weight decay of matrices; norms and biases have none."},
    {TE_KEY(optimizer.groups), kBuiltIn, kAny,
     "Rules for kinds of parameters, the last match counts: `norms, biases: lr_factor 2`, `embeddings, "
     "linear_*: lr_factor "
     "0.2, weight_decay 0`.",
     "a list of texts, or one text"},
    {TE_KEY(optimizer.beta1), kBuiltIn, kFraction, "Decay of the first Adam moment."},
    {TE_KEY(optimizer.beta2), kBuiltIn, kFraction, "Decay of the second Adam moment."},
    {TE_KEY(optimizer.eps), kBuiltIn, above(0), "Added to the root of the second moment."},
    {TE_KEY(optimizer.clip_grad), kBuiltIn, at_least(0), "Global gradient norm to clip to; 0 disables."},
    {TE_KEY(optimizer.main_grad_dtype), kBuiltIn, kAny,
     "Number format of gradients, accumulated over microbatches and reduced over ranks."},
    {TE_KEY(optimizer.store_param_remainders), kBuiltIn, kAny,
     "Store FP32 master weights as BF16 weights plus 16-bit remainders, which saves 2 bytes per parameter "
     "and differs by rare rounding."},
    {TE_KEY(optimizer.exp_avg_dtype), kBuiltIn, kAny,
     "Number format of first moments: 4, 2, or 1 byte per parameter (plus scales per 128); `bf16` and `fp8` "
     "round stochastically."},
    {TE_KEY(optimizer.exp_avg_sq_dtype), kBuiltIn, kAny,
     "Number format of second moments, as for `exp_avg_dtype`; `fp8` stores their roots."},
    {TE_KEY(optimizer.offload), kBuiltIn, kAny,
     "`adamw`: offload Adam moments, or also FP32 master weights (`state`), to pinned host memory; the "
     "update runs on the GPU, bitwise identical."},
    {TE_KEY(optimizer.muon_momentum), kBuiltIn, kFraction,
     "`muon`: momentum decay; the gradient is added without a factor."},

    {TE_KEY(adapter.type), kBuiltIn, kAny, "Kind of adapter; `none` trains all weights."},
    {TE_KEY(adapter.rank), kBuiltIn, from_to(8, 1024),
     "Rank of each targeted matrix's adapter, a multiple of 8."},
    {TE_KEY(adapter.alpha), kBuiltIn, above(0), "The adapter's output is multiplied by `alpha` / `rank`."},
    {TE_KEY(adapter.dropout), kBuiltIn, kFraction, "Dropout of the adapter's input."},
    {TE_KEY(adapter.target), kBuiltIn, kAny,
     "Matrices with an adapter: `q`, `k`, `v`, `o`, `gate`, `up`, `down` (also as `q_proj`), "
     "`linear_fc1` or `all-linear`; `*` and `?` as in file names.",
     "a list of names or patterns, or one"},
    {TE_KEY(adapter.use_rslora), kBuiltIn, kAny, "Multiply by `alpha` / sqrt(`rank`) instead."},
    {TE_KEY(adapter.init), kBuiltIn, kAny,
     "Initial A: normal with the variance of PEFT's default, or `gaussian` with standard deviation 1 / "
     "`rank`; B is zero."},
    {TE_KEY(adapter.init_from), "a new adapter", kAny,
     "Adapter checkpoint or PEFT folder whose adapter a new run starts from.", "a path"},
    {TE_KEY(adapter.train_norms), kBuiltIn, kAny, "Train the norms' weights, too."},
    {TE_KEY(adapter.train_embeddings), kBuiltIn, kAny, "Train the embeddings and the output layer, too."},
});

}  // namespace

std::span<const Key> execution_rows() {
  return kExecutionRows;
}

}  // namespace te::config
