// The keys of what a run reads, writes and watches. See key_table.h for what each column means.
#include "config/key_rows.h"

namespace te::config {
namespace {

constexpr std::string_view kSourcesRule = "`[[weight, prefix], ...]`, a list of prefixes, or one prefix";
constexpr std::string_view kSetsRule =
    "`[[weight, prefix], ...]`, a list of prefixes, or one prefix; or `{name: one of these, ...}`";

const auto kRunRows = std::to_array<Key>({
    {TE_KEY(data.train), kBuiltIn, kAny,
     "Training datasets, blended by weight (relative; they need not sum to 1). Required unless `synthetic`.",
     kSourcesRule},
    {TE_KEY(data.valid), kBuiltIn, kAny,
     "Validation datasets, blended by weight. Required when `training.eval_interval` is not 0. A mapping "
     "gives several sets, each with a loss of its own.",
     kSetsRule},
    {TE_KEY(data.synthetic), kBuiltIn, kAny,
     "Random tokens instead of datasets, for benchmarks; without validation."},
    {TE_KEY(data.format), kBuiltIn, kAny,
     "What a sample is: `pretrain` cuts a stream of documents; `instruct` packs whole conversations of "
     "datasets "
     "made by `te-data instruct`, with the loss on the responses."},
    {TE_KEY(data.document_mask), kBuiltIn, kAny,
     "Attention does not cross the documents (`instruct`: conversations) of a sample."},
    {TE_KEY(data.max_documents), kBuiltIn, from_to(1, kMaxWidth),
     "With `document_mask`: documents that a sample may hold, on average over a microbatch. Where attention "
     "is cuDNN's ([dtypes.md](dtypes.md#attention)), its memory and time grow with it."},
    {TE_KEY(data.eod_mask_loss), kBuiltIn, kAny,
     "`pretrain`: no loss on the first token of a document, which the end of another one does not foretell."},
    {TE_KEY(data.overlong), kBuiltIn, kAny,
     "`instruct`: conversations of more than `model.seq_length` + 1 tokens are cut to that length, or left "
     "out."},
    {TE_KEY(data.tokenizer), kBuiltIn, kAny,
     "What the datasets were tokenized with, as given to te-data: `bytes` (256 bytes and an end-of-document "
     "token), a tokenizer's file, or its folder. Its files are copied to `checkpoint.directory`, where "
     "te-generate and te-convert export find them; when empty, those are copied that the checkpoint of "
     "`init_from` or `resume` has.",
     "empty, `bytes` or a path"},
    {TE_KEY(data.check_tokenizer), kBuiltIn, kAny,
     "Refuse datasets whose companion (`PREFIX.meta.json`, written by te-data) says that another tokenizer "
     "than `tokenizer`, or than that of the first dataset, made them."},
    {TE_KEY(data.check_fingerprint), kBuiltIn, kAny,
     "In a resumed run: refuse datasets that are not what they were when the checkpoint was saved, though "
     "they "
     "have the same prefix; `false` trains on what is there now, with a warning."},

    {TE_KEY(checkpoint.directory), "logging.directory/checkpoints", kAny, "Where checkpoints are written."},
    {TE_KEY(checkpoint.save_every), kBuiltIn, from_to(0, kMaxSteps),
     "Steps between checkpoints; 0 is never."},
    {TE_KEY(checkpoint.save_last), kBuiltIn, kAny, "Save after the last step."},
    {TE_KEY(checkpoint.keep), kBuiltIn, from_to(0, 1000000),
     "Checkpoints that are kept: after a save the oldest are deleted, but never the latest nor the last good "
     "one; 0 "
     "keeps all."},
    {TE_KEY(checkpoint.keep_best), kBuiltIn, from_to(0, 1000000),
     "Checkpoints with the lowest losses of `training.best_valid_set`: an evaluation that is among them "
     "saves "
     "one, `keep` does not count them, and the file `best` beside `latest` names the best; 0 is none."},
    {TE_KEY(checkpoint.async), kBuiltIn, kAny,
     "Write checkpoints in the background: training waits for a copy to host memory only (12 bytes per "
     "parameter of the "
     "rank, where the host has them), not for the disk."},
    {TE_KEY(checkpoint.save_optimizer), kBuiltIn, kAny,
     "Save the optimizer's moments, two thirds of a checkpoint in FP32; without them a resumed run starts "
     "with "
     "moments of zero."},
    {TE_KEY(checkpoint.resume), kBuiltIn, kAny,
     "`auto` continues from the latest checkpoint of `directory` if there is one; a path continues from that "
     "checkpoint, or from the latest of that directory or run folder.",
     "`auto`, `never` or a path"},
    {TE_KEY(checkpoint.resume_fallback), kBuiltIn, kAny,
     "With `resume: auto`: where the newest checkpoint is damaged, go on from the one before it, with a "
     "warning; "
     "otherwise stop."},
    {TE_KEY(checkpoint.load_optimizer), kBuiltIn, kAny,
     "Resume the optimizer's moments; otherwise they start at zero."},
    {TE_KEY(checkpoint.init_from), "random initial weights", kAny,
     "Checkpoint (of any step, or made by `te-convert`; or a run's folder) whose weights a new run starts "
     "with, at step 1 and "
     "with moments "
     "of zero; what `resume` finds comes first.",
     "a path"},

    {TE_KEY(logging.directory), "runs/NAME, NAME being the config file's name without .yaml", kAny,
     "Where the run writes its logs."},
    {TE_KEY(logging.every), kBuiltIn, from_to(1, kMaxSteps), "Steps between console lines and log records."},
    {TE_KEY(logging.csv), kBuiltIn, kAny, "Loss log inside `directory`; empty is none.",
     "a file name, or empty"},
    {TE_KEY(logging.jsonl), kBuiltIn, kAny, "Write `metrics.jsonl` inside `directory`."},
    {TE_KEY(logging.tensorboard), kBuiltIn, kAny,
     "Write TensorBoard's event files inside `directory`: the numbers of `metrics.jsonl`, FP8 health as "
     "histograms, and the config."},
    {TE_KEY(logging.fp8_stats_every), kBuiltIn, from_to(0, kMaxSteps),
     "Steps between FP8 health records in `metrics.jsonl` and event files; 0 is never."},
    {TE_KEY(logging.fp8_statistics_every), kBuiltIn, from_to(0, kMaxSteps),
     "Steps between records of what casting to FP8 does to every operand (`fp8_statistics.jsonl`, "
     "[fp8.md](fp8.md#statistics)): a forward and a backward pass of the step's first microbatch more. 0 is "
     "never."},
    {TE_KEY(logging.fp8_what_if), kBuiltIn, kAny,
     "With `fp8_statistics_every`: recipes whose casts of the same operands are recorded, too, also in BF16 "
     "runs.",
     "a list of `tensorwise`, `rowwise`, `blockwise`"},
    {TE_KEY(logging.loss_by_source), kBuiltIn, kAny,
     "Of training data that is a blend: the loss of each dataset, too, over the tokens since the last "
     "record."},
    {TE_KEY(logging.generate_every), kBuiltIn, from_to(0, kMaxSteps),
     "Steps between texts that the model makes of the prompts below, in `samples.jsonl` and on the console; "
     "0 is never. Needs `data.tokenizer`, and `parallel.virtual_stages` 1."},
    {TE_KEY(logging.generate_prompts), kBuiltIn, kAny, "Texts to go on from.",
     "a list of texts, or one text"},
    {TE_KEY(logging.generate_prompt_file), kBuiltIn, kAny, "A file with more of them, one a line.",
     "empty, or a path"},
    {TE_KEY(logging.generate_tokens), kBuiltIn, from_to(1, kMaxWidth), "Tokens for a prompt, at most."},
    {TE_KEY(logging.generate_temperature), "0, or 1 with generate_top_k or generate_top_p", from_to(0, 1000),
     "Logits are divided by it; 0 always takes the most probable token. The draws follow `training.seed`."},
    {TE_KEY(logging.generate_top_k), kBuiltIn, from_to(0, 1e7),
     "Draw among so many most probable tokens; 0 is all."},
    {TE_KEY(logging.generate_top_p), kBuiltIn, Range{.low = 0, .high = 1, .open_low = true},
     "Draw among the fewest most probable tokens whose probabilities reach this."},

    {TE_KEY(evaluation.every), kBuiltIn, from_to(0, kMaxSteps),
     "Steps between evaluations on `tasks`, and one after the last step; 0 is never. Needs "
     "`data.tokenizer`, and "
     "`parallel.virtual_stages` 1."},
    {TE_KEY(evaluation.tasks), kBuiltIn, kAny,
     "Tasks as `te-generate evaluate` knows them, such as `[hellaswag, lambada_openai]`, or own ones: `NAME` "
     "for `NAME.jsonl` of `data`.",
     "a list of names, or one name"},
    {TE_KEY(evaluation.data), kBuiltIn, kAny, "The folder with the data of the tasks.", "empty, or a path"},
    {TE_KEY(evaluation.limit), kBuiltIn, from_to(0, kMaxSteps),
     "Only the first so many documents of each task; 0 is all."},
    {TE_KEY(evaluation.batch), kBuiltIn, from_to(1, kMaxWidth),
     "Documents that are judged at a time, at most. The cache of keys and values, which is planned for the "
     "whole run, grows with them; the results do not change but for rounding."},

    {TE_KEY(guard.every), kBuiltIn, from_to(0, kMaxSteps),
     "Steps between comparisons; 0 is none. Needs `precision.fp8`."},
    {TE_KEY(guard.compare_steps), "4, or every - 1 where that is smaller", from_to(1, 10000),
     "Steps of a comparison: taken in BF16, undone, and taken in FP8 with the same samples. Below `every`."},
    {TE_KEY(guard.action), kBuiltIn, kAny,
     "What to do where FP8 loses more than the spread of earlier comparisons allows: say so; say so and go "
     "on "
     "in BF16; say so, go back to where the comparison began, and go on from there in BF16."},
    {TE_KEY(guard.bf16_steps), kBuiltIn, from_to(1, kMaxSteps),
     "`bf16` and `rollback`: steps in BF16, before FP8 is tried again."},
    {TE_KEY(guard.threshold), kBuiltIn, above(0),
     "What is too much: robust standard deviations above the median of the last 16 gaps. With fewer than 4 "
     "known, `tolerance` alone counts."},
    {TE_KEY(guard.tolerance), kBuiltIn, at_least(0),
     "A share of the BF16 loss. A gap below it is never too much."},
    {TE_KEY(guard.validate), kBuiltIn, kAny,
     "Compare validation losses (`training.best_valid_set`) after the steps, too."},
    {TE_KEY(guard.test_outlier_step), kBuiltIn, from_to(0, kMaxSteps),
     "For tests: from this step on FP8 inputs of `linear_fc2` are scaled as if they held an outlier, which "
     "costs all "
     "other values their resolution. 0 is never."},
    {TE_KEY(guard.test_outlier_log2), kBuiltIn, from_to(1, 60),
     "For tests: the outlier is 2 to this power times as large as the largest value."},
});

}  // namespace

std::span<const Key> run_rows() {
  return kRunRows;
}

}  // namespace te::config
