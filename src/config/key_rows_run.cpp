// The keys of what a run reads, writes and watches. See key_table.h for what each column means.
#include "config/key_rows.h"

namespace te::config {
namespace {

constexpr std::string_view kSourcesRule = "`[[weight, prefix], ...]`, a list of prefixes, or one prefix";
constexpr std::string_view kSetsRule =
    "`[[weight, prefix], ...]`, a list of prefixes, or one prefix; or `{name: one of these, ...}`";

const auto kRunRows = std::to_array<Key>({
    {TE_KEY(data.train), kBuiltIn, kAny,
     "Training datasets, blended by relative weight; required unless `synthetic`.", kSourcesRule},
    {TE_KEY(data.valid), kBuiltIn, kAny,
     "Validation datasets, blended by weight, or several named sets, of which the first decides best "
     "checkpoints and early stopping; required for `training.eval_interval`.",
     kSetsRule},
    {TE_KEY(data.synthetic), kBuiltIn, kAny,
     "Random tokens instead of datasets, for benchmarks; no validation."},
    {TE_KEY(data.format), kBuiltIn, kAny,
     "Samples: `pretrain` concatenates documents and splits them; `instruct` packs whole conversations from "
     "`te-data instruct`, with loss on responses only."},
    {TE_KEY(data.document_mask), kBuiltIn, kAny,
     "Attention does not cross documents (`instruct`: conversations) within a sample. Learned positions "
     "(`gpt`) still "
     "count from the start of the sample."},
    {TE_KEY(data.max_documents), kBuiltIn, from_to(1, kMaxWidth),
     "With `document_mask`: maximum documents per sample, averaged over a microbatch; memory and time of "
     "cuDNN attention grow with it ([reference/dtypes.md](dtypes.md))."},
    {TE_KEY(data.eod_mask_loss), kBuiltIn, kAny,
     "`pretrain`: mask the loss on the first token of each document."},
    {TE_KEY(data.overlong), kBuiltIn, kAny,
     "`instruct`: truncate conversations of more than `model.seq_length` + 1 tokens, or drop them."},
    {TE_KEY(data.tokenizer), kBuiltIn, kAny,
     "Tokenizer of the datasets, as given to te-data; its files are copied to `checkpoint.directory`. Empty: "
     "the tokenizer of the loaded checkpoint.",
     "empty, `bytes` or a path"},
    {TE_KEY(data.check), kBuiltIn, kAny,
     "Refuse datasets whose `PREFIX.meta.json` names another tokenizer, and when resuming datasets that "
     "changed since the checkpoint; `false` only warns of the latter."},

    {TE_KEY(checkpoint.directory), "logging.directory/checkpoints", kAny, "Folder of the checkpoints."},
    {TE_KEY(checkpoint.save_every), kBuiltIn, from_to(0, kMaxSteps),
     "Steps between checkpoints; 0 disables."},
    {TE_KEY(checkpoint.save_last), kBuiltIn, kAny, "Save after the last step."},
    {TE_KEY(checkpoint.keep), kBuiltIn, from_to(0, 1000000),
     "Number of checkpoints to keep; the latest and the last good one are never deleted, 0 keeps all."},
    {TE_KEY(checkpoint.keep_best), kBuiltIn, from_to(0, 1000000),
     "Number of checkpoints with the lowest validation losses to save and keep in addition; the file `best` "
     "names the best."},
    {TE_KEY(checkpoint.async), kBuiltIn, kAny,
     "Write checkpoints in the background, through a copy in host memory of 12 bytes per parameter of the "
     "rank."},
    {TE_KEY(checkpoint.save_optimizer), kBuiltIn, kAny,
     "Save the optimizer state, two thirds of an FP32 checkpoint; without it a resumed run starts with zero "
     "moments."},
    {TE_KEY(checkpoint.resume), kBuiltIn, kAny,
     "`auto` resumes from the latest undamaged checkpoint in `directory`, if any; a path names a checkpoint, "
     "or a directory or run folder.",
     "`auto`, `never` or a path"},
    {TE_KEY(checkpoint.load_optimizer), kBuiltIn, kAny,
     "Load the optimizer state when resuming; `false` starts with zero moments."},
    {TE_KEY(checkpoint.init_from), "random initial weights", kAny,
     "Checkpoint, run folder or Hugging Face folder whose weights a new run starts from, at step 1 with zero "
     "moments; `resume` takes precedence.",
     "a path"},

    {TE_KEY(logging.directory), "runs/NAME, NAME being the config file's name without .yaml", kAny,
     "Run folder, to which the run writes its logs."},
    {TE_KEY(logging.every), kBuiltIn, from_to(1, kMaxSteps), "Steps between console lines and log records."},
    {TE_KEY(logging.tensorboard), kBuiltIn, kAny,
     "Write TensorBoard event files in `directory`: the numbers of `metrics.jsonl`, FP8 health as "
     "histograms, and the config."},
    {TE_KEY(logging.fp8_stats_every), kBuiltIn, from_to(0, kMaxSteps),
     "Steps between FP8 health records in `metrics.jsonl` and event files, of steps that `logging.every` "
     "logs; 0 disables."},
    {TE_KEY(logging.fp8_statistics_every), kBuiltIn, from_to(0, kMaxSteps),
     "Steps between records of quantization error per operand "
     "([how-to/debug-fp8.md](../how-to/debug-fp8.md)), each one extra microbatch; "
     "not in BF16 steps of an FP8 run; 0 disables."},
    {TE_KEY(logging.fp8_what_if), kBuiltIn, kAny,
     "With `fp8_statistics_every`: other recipes to evaluate on the same operands, also in BF16 runs.",
     "a list of `tensorwise`, `rowwise`, `blockwise`, `mxfp8`, `nvfp4`"},
    {TE_KEY(logging.loss_by_source), kBuiltIn, kAny,
     "Log the training loss of each dataset of a blend since the last record."},
    {TE_KEY(logging.generate_every), kBuiltIn, from_to(0, kMaxSteps),
     "Steps between generated samples (`samples.jsonl` and console); needs `data.tokenizer` and "
     "`parallel.virtual_stages` 1, 0 disables."},
    {TE_KEY(logging.generate_prompts), kBuiltIn, kAny, "Prompts to complete.",
     "a list of texts, or one text"},
    {TE_KEY(logging.generate_tokens), kBuiltIn, from_to(1, kMaxWidth), "Maximum tokens per completion."},
    {TE_KEY(logging.generate_temperature), kBuiltIn, from_to(0, 1000),
     "Sampling temperature; 0 is greedy, and random draws follow `training.seed`."},

    {TE_KEY(evaluation.every), kBuiltIn, from_to(0, kMaxSteps),
     "Steps between evaluations on `tasks`, plus one after the last step; needs `data.tokenizer` and "
     "`parallel.virtual_stages` 1, 0 disables."},
    {TE_KEY(evaluation.tasks), kBuiltIn, kAny,
     "Tasks of `te-generate evaluate`, such as `[hellaswag, lambada_openai]`, or custom tasks: `NAME` for "
     "`NAME.jsonl` in `data`.",
     "a list of names, or one name"},
    {TE_KEY(evaluation.data), kBuiltIn, kAny, "Folder with the task data.", "empty, or a path"},
    {TE_KEY(evaluation.limit), kBuiltIn, from_to(0, kMaxSteps), "Maximum documents per task; 0 is all."},
    {TE_KEY(evaluation.batch), kBuiltIn, from_to(1, kMaxWidth),
     "Maximum documents per batch; the KV cache is part of the memory plan and grows with it."},

    {TE_KEY(guard.every), kBuiltIn, from_to(0, kMaxSteps),
     "Steps between comparisons with BF16; needs `precision.fp8`, 0 disables."},
    {TE_KEY(guard.compare_steps), "4, or every - 1 where that is smaller", from_to(1, 10000),
     "Steps per comparison, run in BF16, undone, and run in FP8 on the same samples; below `every`."},
    {TE_KEY(guard.action), kBuiltIn, kAny,
     "Action when the FP8 gap exceeds the threshold: `warn`, continue in BF16, or roll back to the "
     "comparison's start and continue in BF16."},
    {TE_KEY(guard.bf16_steps), kBuiltIn, from_to(1, kMaxSteps),
     "`bf16` and `rollback`: steps in BF16 before FP8 is tried again."},
    {TE_KEY(guard.tolerance), kBuiltIn, at_least(0),
     "Share of the BF16 loss; a smaller gap never triggers `action`."},
});

}  // namespace

std::span<const Key> run_rows() {
  return kRunRows;
}

}  // namespace te::config
