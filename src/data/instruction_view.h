// An instruction dataset (tokens and a loss mask, loss_mask.h) as a list of samples of packed conversations.
//
// A sample of S positions holds whole conversations, one after the other, and padding (token 0, target -1) at
// its end. A conversation of n tokens takes n - 1 positions: its last token is only a target. A target is -1
// unless the mask counts it, so nothing is predicted across conversations; document_start keeps attention
// inside them. A conversation of more than S + 1 tokens keeps its first S + 1, or is left out by option, as is
// one without a counted target.
//
// Shuffled, for training: every epoch puts the conversations into a new order, packs them in that order (best
// fit, packing.h), and shuffles the samples. How many samples an epoch has depends on its packing, so to find a
// sample the epochs before it are packed once each; that takes lengths only. Ordered, for validation: one
// epoch, conversations packed in the order of the file, each exactly once.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "data/indexed_dataset.h"
#include "data/loss_mask.h"
#include "data/sample_view.h"

namespace te::data {

struct InstructionViewOptions {
  int64_t seq_length = 0;
  int64_t vocab_size = 0;  ///< every token read must be below it
  uint64_t seed = 0;
  uint64_t stream = 0;  ///< separates the datasets of a blend
  bool shuffle = true;
  bool drop_overlong = false;  ///< leave out conversations of more than S + 1 tokens in place of cutting them
};

class InstructionView : public SampleView {
 public:
  /// Reads the lengths and the masks of all conversations. UserError without a mask, or when no conversation is
  /// left.
  InstructionView(std::shared_ptr<const IndexedDataset> dataset, const InstructionViewOptions& options);
  ~InstructionView() override;

  Counts counts() const override;
  const std::string& prefix() const override { return dataset_->prefix(); }
  void read(int64_t index, const SampleRow& row) const override;

 private:
  struct Epoch;
  void choose_conversations();
  std::shared_ptr<const Epoch> make_epoch(int64_t number) const;
  /// The epoch that sample `index` belongs to; makes `index` count from the epoch's first sample.
  std::shared_ptr<const Epoch> find_epoch(int64_t& index) const;

  std::shared_ptr<const IndexedDataset> dataset_;
  LossMask mask_;
  InstructionViewOptions options_;
  std::vector<int64_t> conversations_;  // documents that are used
  std::vector<int32_t> positions_;      // of each, in a sample
  int64_t cut_ = 0, too_long_ = 0, without_target_ = 0;
  mutable std::mutex mutex_;
  mutable std::vector<int64_t> epoch_ends_;                   // samples up to the end of epoch 0, 1, ...
  mutable std::vector<std::shared_ptr<const Epoch>> recent_;  // the last epochs used, newest first
};

}  // namespace te::data
