// The sections, and the key table with the rows of key_rows_*.cpp.
#include "config/key_table.h"

#include <array>

#include "config/key_rows.h"

namespace te::config {

namespace {

constexpr auto kSections = std::to_array<Section>({
    {"model", "Architecture. Names follow Megatron-LM where it has one."},
    {"precision",
     "Number formats. `fp8` alone turns a BF16 run into an FP8 run; without it the other `fp8_*` and amax "
     "keys have no effect unless `fp8_calibrate` is set."},
    {"parallel",
     "Parallel layout of a job (`mpirun -n RANKS te-train ...`). The data-parallel size is RANKS / (`tensor` "
     "* `context` * `pipeline`). Layouts give the same results up to rounding "
     "([explanation/determinism.md](../explanation/determinism.md))."},
    {"training", "Batches, length, device. Batch sizes count sequences of `model.seq_length` tokens."},
    {"optimizer", "AdamW or Muon, and the learning-rate schedule. Steps are optimizer steps."},
    {"adapter",
     "Low-rank adapters (LoRA) of linear layers and experts: the weights of `checkpoint.init_from`, the "
     "base, are not trained, also when resuming, and checkpoints hold only the adapter "
     "([tutorials/lora.md](../tutorials/lora.md)). An FP8 base is quantized once and has no BF16 copy, "
     "except with `mxfp8` and `nvfp4`; `rowwise` keeps two FP8 copies. Refused: `zero_bubble`, `muon`, "
     "`generate_every` and `evaluation.every`. PEFT folders of GPT-2, GPT-NeoX, Phi-3, DoRA and ranks that "
     "differ between matrices are not supported."},
    {"data",
     "Tokenized datasets (`PREFIX.bin` with `PREFIX.idx`, made by `te-data`). Relative paths start at the "
     "working directory."},
    {"checkpoint", "Saving and resuming."},
    {"logging", "What a run writes, and where."},
    {"evaluation",
     "Tasks on which the model is evaluated during training ([how-to/evaluate.md](../how-to/evaluate.md))."},
    {"guard",
     "Comparison of an FP8 run with BF16 steps from the same state "
     "([how-to/debug-fp8.md](../how-to/debug-fp8.md)). With `action: warn` it does not change the run's "
     "results."},
});

std::vector<Key> all_rows() {
  std::vector<Key> all;
  for (const std::span<const Key> rows : {model_rows(), precision_rows(), execution_rows(), run_rows()})
    all.insert(all.end(), rows.begin(), rows.end());
  return all;
}

}  // namespace

std::span<const Section> sections() {
  return kSections;
}

std::span<const Key> keys() {
  static const std::vector<Key> all = all_rows();
  return all;
}

const Key* find_key(std::string_view path) {
  for (const Key& key : keys()) {
    if (key.path == path) return &key;
  }
  return nullptr;
}

}  // namespace te::config
