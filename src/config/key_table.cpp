// The sections, and the rows of key_rows_*.cpp as one table.
#include "config/key_table.h"

#include <array>

#include "config/key_rows.h"

namespace te::config {

namespace {

constexpr auto kSections = std::to_array<Section>({
    {"model", "The architecture. Names follow Megatron-LM where it has one."},
    {"precision",
     "Number formats. `fp8` is the one key that turns a BF16 run into an FP8 run; every other `fp8_*` key "
     "and the amax keys have no effect while it is `off`, unless `fp8_calibrate` is set."},
    {"parallel",
     "How the ranks of a job (`mpirun -n RANKS te-train ...`) share the work. Data parallelism takes what "
     "the other axes leave: RANKS / (`tensor` * `context` * `pipeline`), and its ranks share the "
     "optimizer's state (ZeRO-1). The layout does not change the mathematics, up to rounding; with "
     "`precision.fp8_recast` each tensor-parallel and context-parallel rank requantizes its own part of an "
     "operand, by which the loss of step 1 under `delayed` differs between layouts by 1e-4 to 6e-4."},
    {"training", "Batches, length, device. Batch sizes count sequences of `model.seq_length` tokens."},
    {"optimizer", "AdamW or Muon, and the learning-rate schedule. Steps are optimizer steps."},
    {"data",
     "Tokenized datasets (`PREFIX.bin` with `PREFIX.idx`, made by `te-data`). Relative paths start at the "
     "working directory."},
    {"checkpoint", "Saving and resuming."},
    {"logging", "What a run writes, and where."},
    {"evaluation",
     "Tasks that the model is judged by while it trains ([evaluate.md](evaluate.md#while-training))."},
    {"guard",
     "An FP8 run that compares itself with BF16 from one state ([fp8.md](fp8.md#the-guard)). While it only "
     "observes, the run "
     "computes the bits that it computes without."},
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
