// An instruction dataset (tokens and a loss mask, loss_mask.h) as a list of samples of packed conversations.
//
// A sample of S positions contains whole conversations and, at its end, padding (token 0, target kPaddingTarget). A
// conversation of n tokens takes n - 1 positions, because its last token is a target only. A target is -1 unless the
// mask includes it, so no target belongs to another conversation; document_start restricts attention to one. One of
// more than S + 1 tokens is truncated to S + 1 tokens, or dropped with drop_overlong. Conversations without a target
// in the loss are dropped.
//
// Shuffled, for training: every epoch shuffles the conversations, packs them in that order (best fit, packing.h), and
// shuffles the samples. The number of samples of an epoch depends on its packing, so finding a sample requires packing
// each earlier epoch once, which needs the lengths only. Ordered, for validation: one epoch, with the conversations
// packed in the order of the file, each exactly once.
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
  int64_t vocab_size = 0;  ///< every token that is read must be below it
  uint64_t seed = 0;
  uint64_t stream = 0;  ///< random stream; different for each dataset of a blend
  bool shuffle = true;
  bool drop_overlong = false;  ///< drop conversations of more than S + 1 tokens instead of truncating them
};

class InstructionView : public SampleView {
 public:
  /// Reads the lengths and the masks of all conversations. UserError if there is no mask, or if all conversations are
  /// dropped.
  InstructionView(std::shared_ptr<const IndexedDataset> dataset, const InstructionViewOptions& options);
  ~InstructionView() override;

  Counts counts() const override;
  const std::string& prefix() const override { return dataset_->prefix(); }
  void read(int64_t index, const SampleRow& row) const override;

 private:
  struct Epoch;
  void choose_conversations();
  std::shared_ptr<const Epoch> make_epoch(int64_t number) const;
  /// The epoch of sample `index`; changes `index` to the sample's index within the epoch.
  std::shared_ptr<const Epoch> find_epoch(int64_t& index) const;

  std::shared_ptr<const IndexedDataset> dataset_;
  LossMask mask_;
  InstructionViewOptions options_;
  std::vector<int64_t> conversations_;  // the documents that are not dropped
  std::vector<int32_t> positions_;      // for each of them, its number of positions in a sample
  int64_t truncated_ = 0, too_long_ = 0, without_target_ = 0;
  mutable std::mutex mutex_;
  mutable std::vector<int64_t> epoch_ends_;  // number of samples up to the end of epoch 0, 1, ...
  mutable std::vector<std::shared_ptr<const Epoch>> recent_;  // the most recently used epochs, newest first
};

}  // namespace te::data
