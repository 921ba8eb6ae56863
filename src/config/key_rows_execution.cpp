// The keys of how a run computes: ranks, batches, optimizer. See key_table.h for what each column means.
#include "config/key_rows.h"

namespace te::config {
namespace {

const auto kExecutionRows = std::to_array<Key>({
    {TE_KEY(parallel.ranks), kBuiltIn, from_to(0, 1048576),
     "Ranks (GPUs) that the config is made for: `--dry-run` and `--print-schedule` show a job of so many, "
     "and "
     "a run with fewer or more says so at its start. 0: as few as the layout needs, `tensor` * `context` * "
     "`pipeline`."},
    {TE_KEY(parallel.tensor), kBuiltIn, from_to(1, 1024),
     "Ranks that share every layer's matrices. Divides `num_query_groups` and `ffn_hidden_size`."},
    {TE_KEY(parallel.context), kBuiltIn, from_to(1, 1024),
     "Ranks that share the tokens of every sequence, for sequences too long for one. Twice as many divide "
     "`model.seq_length`. Attention exchanges heads where the query groups of a tensor rank are a multiple "
     "of it, keys and values otherwise."},
    {TE_KEY(parallel.pipeline), kBuiltIn, from_to(1, 1024), "Pipeline stages: ranks that share the layers."},
    {TE_KEY(parallel.sequence), kBuiltIn, kAny,
     "Sequence parallelism: the tensor ranks share the tokens of norms and residual stream, too."},
    {TE_KEY(parallel.virtual_stages), "1, or 2 with schedule interleaved", from_to(1, 1024),
     "Model chunks of each stage; more than 1 with `schedule: interleaved` or `zero_bubble`."},
    {TE_KEY(parallel.pipeline_split), kBuiltIn, kAny,
     "Layers of each piece of the pipeline (each stage, or each of its virtual stages). `even`: as equal as "
     "they can be. `balanced`: as equal in time, so that the last one, which has the output layer and the "
     "loss, has fewer. A list such as `9,8,8,7`: so many, in the order of the model. Checkpoints go on under "
     "any."},
    {TE_KEY(parallel.schedule), "1f1b, or interleaved with virtual_stages above 1", kAny,
     "Order of forward and backward passes over the stages; `te-train --print-schedule` draws it."},
    {TE_KEY(parallel.tensor_overlap), kBuiltIn, from_to(1, 64),
     "Pieces along the tokens into which GEMMs next to a tensor-parallel collective are cut, so that one "
     "piece is sent while the next is computed. 1 is no overlap; with `tensor_transport: copy` as many as "
     "tensor ranks hide most."},
    {TE_KEY(parallel.tensor_transport), kBuiltIn, kAny,
     "With `sequence`, on GPUs: what carries the tensor ranks' tokens. `nccl`: NCCL's kernels, which take "
     "multiprocessors. `copy`: the GPUs' copy engines, which take none and need tensor ranks on one host "
     "that "
     "can write each other's memory (NVLink). Sums are then added in FP32 in the order of the ranks."},
    {TE_KEY(parallel.shard), kBuiltIn, kAny,
     "Data parallelism: what each data rank keeps a share of. `optimizer`: main parameters and moments "
     "(ZeRO-1). `gradients`: also the layers' gradients, which are reduced after every microbatch (ZeRO-2). "
     "`parameters`: also the layers' values, which are gathered for every pass (ZeRO-3, FSDP). Each takes "
     "less memory and sends more than the one before. With one data rank there is nothing to share."},
    {TE_KEY(parallel.bucket_size), kBuiltIn, from_to(1, 1e12),
     "Data parallelism: parameters of one gradient reduction, at least."},
    {TE_KEY(parallel.overlap_grad_reduce), kBuiltIn, kAny,
     "Data parallelism: reduce a bucket of gradients as soon as the backward pass has finished it."},
    {TE_KEY(parallel.overlap_param_gather), kBuiltIn, kAny,
     "Data parallelism: gather new parameters while the next forward pass runs."},
    {TE_KEY(parallel.data_transport), kBuiltIn, kAny,
     "Data parallelism, on GPUs: what carries buckets of gradients and values. `nccl`: NCCL's kernels, which "
     "take multiprocessors. `copy`: the GPUs' copy engines, which take none and need data ranks on one host "
     "that can write each other's memory (NVLink), and memory for the other ranks' parts of a segment of "
     "gradients. Sums are then added in FP32 in the order of the ranks. Muon's updates go through NCCL."},
    {TE_KEY(parallel.fp8_param_gather), kBuiltIn, kAny,
     "Data parallelism: each rank casts its share of the FP8 weights, and they travel in FP8, half the bytes "
     "of BF16. Same numbers; 2 % faster on two H200. It applies to weights with one scale a tensor "
     "(`delayed`, `tensorwise`) all of whose GEMMs are in FP8, unless somebody reads their BF16 values: "
     "`precision.fp8_keep_weights: none`, `precision.fp8_from_step` and `fp8_until_step`, `guard.every`, "
     "`logging.fp8_statistics_every`, `logging.generate_every`, `evaluation.every`."},
    {TE_KEY(parallel.pipeline_transport), kBuiltIn, kAny,
     "Pipeline, on GPUs: what carries the stream and its gradient between stages. `nccl`: NCCL's kernels, "
     "which wait for the neighbour on multiprocessors. `copy`: the GPUs' copy engines, which take none and "
     "need the stages of a pipeline on one host, on GPUs that can write each other's memory (NVLink), and "
     "four or more buffers of the stream's size for what arrives. Same numbers. With one stage nothing "
     "travels."},
    {TE_KEY(parallel.overlap_receive), kBuiltIn, kAny,
     "Pipeline, with `pipeline_transport: nccl`: a message from a neighbour may arrive while the pass before "
     "the one that needs it runs. It takes two more buffers of the residual stream's size, and NCCL's "
     "waiting kernels take up to 16 multiprocessors from the passes; without it they take none, and each "
     "message is waited for. With `copy` every message arrives as early as it is sent, and this key has no "
     "meaning."},
    {TE_KEY(parallel.timeout_seconds), kBuiltIn, from_to(0, kMaxSteps),
     "Seconds after which a rank that waits for others ends the job and says for what and whom it waited; 0 "
     "is never."},

    {TE_KEY(training.micro_batch_size), kRequired, from_to(1, kMaxWidth), "Sequences per forward pass."},
    {TE_KEY(training.global_batch_size), kRequired, from_to(1, kMaxWidth),
     "Sequences per optimizer step. A multiple of `micro_batch_size`."},
    {TE_KEY(training.train_steps), kRequired, from_to(1, kMaxSteps), "Optimizer steps of the run."},
    {TE_KEY(training.seed), kBuiltIn, at_least(0),
     "Fixes the initial weights, the order of the data, dropout, and the rounding of moments.",
     "0 to 2^64 - 1"},
    {TE_KEY(training.recompute), kBuiltIn, kAny,
     "Activations recomputed in the backward pass: none, the cheap ones of each layer, or whole layers. "
     "Gradients are the same, bit for bit."},
    {TE_KEY(training.deterministic), kBuiltIn, kAny,
     "On a GPU, sums of attention's backward pass in a fixed order, so that a run repeats bit for bit. It "
     "changes nothing for te-train's own attention kernels, which always do so; where attention is cuDNN's "
     "([dtypes.md](dtypes.md#attention)) it costs about "
     "1 % of time, and memory of 2 * `micro_batch_size` * `num_attention_heads` * `seq_length`^2 bytes."},
    {TE_KEY(training.gemm_autotune), kBuiltIn, kAny,
     "On a GPU, how the algorithm of a GEMM is chosen: the library's first proposal; that of an "
     "earlier run (a file in `~/.cache/te-train`); that, or by timing some candidates, a few seconds a run "
     "at most; that, or by timing all, however long it takes. Runs that take the same choices from the file "
     "compute the same bits."},
    {TE_KEY(training.device), kBuiltIn, kAny, "`auto` is `cuda` when a usable GPU is found, else `cpu`."},
    {TE_KEY(training.device_index), kBuiltIn, from_to(0, 1023),
     "Which GPU, when `device` is or becomes `cuda`."},
    {TE_KEY(training.eval_interval), kBuiltIn, from_to(0, kMaxSteps),
     "Steps between evaluations; 0 is never."},
    {TE_KEY(training.eval_microbatches), kBuiltIn, from_to(1, kMaxSteps), "Microbatches of one evaluation."},
    {TE_KEY(training.best_valid_set), "the first of data.valid", kAny,
     "The validation set by whose loss `checkpoint.keep_best` and early stopping go, and which is "
     "`valid_loss` "
     "in the logs.",
     "a name in `data.valid`"},
    {TE_KEY(training.early_stopping_patience), kBuiltIn, from_to(0, kMaxSteps),
     "Evaluations in a row without a gain after which the run ends, with exit code 0; 0 is never."},
    {TE_KEY(training.early_stopping_min_delta), kBuiltIn, at_least(0),
     "A validation loss is a gain when it is below the lowest one so far by more than this."},
    {TE_KEY(training.max_nonfinite_steps), kBuiltIn, from_to(1, kMaxSteps),
     "A step whose loss or gradient is not finite is skipped; the run stops after this many in a row. "
     "`fp16`: steps that "
     "lower the loss scale do not count."},
    {TE_KEY(training.loss_spikes), kBuiltIn, kAny,
     "What to do with a step whose loss is finite but far above those before it: nothing; say so; say so and "
     "leave its "
     "update out; say so, go back to the last good checkpoint, and leave the samples since then out (the run "
     "stops after "
     "`max_nonfinite_steps` of these)."},
    {TE_KEY(training.loss_spike_threshold), kBuiltIn, above(0),
     "How far: robust standard deviations (1.4826 times the median deviation) above the median of the last "
     "64 losses. Until "
     "16 are known: twice the loss of guessing, the logarithm of `model.vocab_size`."},
    {TE_KEY(training.z_loss_coefficient), kBuiltIn, at_least(0),
     "Adds this times the mean of log(Z)^2 to what is trained for, Z the sum of a token's exponentiated "
     "logits (PaLM: 1e-4, OLMo 2: 1e-5): it keeps logits from growing late in training. `loss` in the logs "
     "stays the cross entropy, `z_loss` is this term; validation has none. 0 is no z-loss."},

    {TE_KEY(optimizer.name), kBuiltIn, kAny,
     "`muon` orthogonalizes the momentum of the layers' matrices, as Moonlight does, and leaves all else "
     "(embeddings, output layer, norms, biases) to AdamW, with one learning rate and weight decay for both."},
    {TE_KEY(optimizer.lr), kBuiltIn, above(0), "Peak learning rate."},
    {TE_KEY(optimizer.min_lr), "a tenth of lr", at_least(0),
     "Learning rate at the end of the decay. At most `lr`."},
    {TE_KEY(optimizer.warmup_steps), kBuiltIn, from_to(0, kMaxSteps), "Steps of linear warm-up."},
    {TE_KEY(optimizer.decay), kBuiltIn, kAny,
     "Shape after the warm-up; `wsd` stays at `lr` and falls only in the last `wsd_decay_steps`."},
    {TE_KEY(optimizer.decay_steps), "training.train_steps", from_to(1, kMaxSteps),
     "Step at which `min_lr` is reached, warm-up included."},
    {TE_KEY(optimizer.wsd_decay_steps), "a tenth of decay_steps, at least 1", from_to(1, kMaxSteps),
     "`wsd`: length of the final decay, in steps. At most `decay_steps`."},
    {TE_KEY(optimizer.weight_decay), kBuiltIn, at_least(0),
     "Decoupled weight decay of matrices; norms and biases have none."},
    {TE_KEY(optimizer.beta1), kBuiltIn, kFraction, "Decay of the first moment."},
    {TE_KEY(optimizer.beta2), kBuiltIn, kFraction, "Decay of the second moment."},
    {TE_KEY(optimizer.eps), kBuiltIn, above(0), "Added to the root of the second moment."},
    {TE_KEY(optimizer.clip_grad), kBuiltIn, at_least(0), "Largest global gradient norm; 0 is no clipping."},
    {TE_KEY(optimizer.main_grad_dtype), kBuiltIn, kAny,
     "Number format in which gradients are accumulated over microbatches and reduced over ranks."},
    {TE_KEY(optimizer.store_param_remainders), kBuiltIn, kAny,
     "Keep FP32 main parameters as the model's BF16 values and the 16 bits that these lack: 2 bytes per "
     "parameter "
     "less. One FP32 rounding in 131,072 differs, by one unit in the last place. Without effect in an FP32 "
     "model."},
    {TE_KEY(optimizer.exp_avg_dtype), kBuiltIn, kAny,
     "Number format of the first moments: 4, 2, or 1 byte per parameter and one per 128. `bf16` and `fp8` "
     "are "
     "rounded stochastically. A checkpoint with moments of another format is converted when it is loaded."},
    {TE_KEY(optimizer.exp_avg_sq_dtype), kBuiltIn, kAny,
     "The same of the second moments; `fp8` holds their roots."},
    {TE_KEY(optimizer.offload), kBuiltIn, kAny,
     "Keep what only the optimizer's step reads in page-locked host memory: `moments`, or `state`: main "
     "parameters, too. The step is made on the GPU, which each byte reaches and leaves once a step; no "
     "number changes (performance.md). `adamw` only."},
    {TE_KEY(optimizer.offload_buffer_mib), kBuiltIn, from_to(1, 65536),
     "Device memory in MiB, at most, through which offloaded state passes. What fits into it comes while the "
     "passes "
     "run, and leaves while those of the next step do."},
    {TE_KEY(optimizer.muon_momentum), kBuiltIn, kFraction,
     "`muon`: share of the momentum that a step keeps; the gradient is added to it whole."},
    {TE_KEY(optimizer.muon_nesterov), kBuiltIn, kAny,
     "`muon`: what is orthogonalized is the gradient plus `muon_momentum` times the new momentum, instead "
     "of that momentum."},
    {TE_KEY(optimizer.muon_ns_steps), kBuiltIn, from_to(1, 100), "`muon`: iterations of Newton-Schulz."},
    {TE_KEY(optimizer.muon_scale), kBuiltIn, above(0),
     "`muon`: an orthogonal update is multiplied by this times the root of its larger dimension, so that its "
     "elements have about this root mean square, as those of AdamW have: learning rates of AdamW fit."},
});

}  // namespace

std::span<const Key> execution_rows() {
  return kExecutionRows;
}

}  // namespace te::config
