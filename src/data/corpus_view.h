// One dataset as an endless (shuffled) or finite (ordered) list of samples of S + 1 tokens, with S = seq_length.
//
// Shuffled, for training: in every epoch the documents are concatenated in a new order; the tokens are divided at
// multiples of S (sample j has tokens [j * S, j * S + S]: it has S targets and shares one token with the next sample),
// and the samples of the epoch are shuffled too. Fewer than S + 1 remaining tokens at the end of an epoch are dropped.
// Samples beyond an epoch belong to the next one, which is shuffled with another key.
//
// Ordered, for validation: documents in the order of the file, with every token a target exactly once (except the
// first). The last sample is padded with tokens 0 and targets kPaddingTarget, which form a separate document.
//
// Document boundaries come from the dataset's index, so they do not depend on an end-of-document token.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "data/indexed_dataset.h"
#include "data/permutation.h"
#include "data/sample_view.h"

namespace te::data {

struct CorpusViewOptions {
  int64_t seq_length = 0;
  int64_t vocab_size = 0;  ///< every token that is read must be below it
  uint64_t seed = 0;
  uint64_t stream = 0;  ///< random stream; different for each dataset of a blend
  bool shuffle = true;
  bool eod_mask_loss = false;  ///< targets that are the first token of a document become -1
};

class CorpusView : public SampleView {
 public:
  /// UserError if the dataset is too small for one sample.
  CorpusView(std::shared_ptr<const IndexedDataset> dataset, const CorpusViewOptions& options);

  Counts counts() const override {
    return {dataset_->num_tokens(), dataset_->num_documents(), samples_per_epoch_, ""};
  }
  const std::string& prefix() const override { return dataset_->prefix(); }
  void read(int64_t index, const SampleRow& row) const override;

 private:
  struct Epoch;   // the order of documents and samples in an epoch
  struct Sample;  // S + 1 tokens and the positions at which their documents begin
  std::shared_ptr<Epoch> find_epoch(int64_t number) const;
  std::shared_ptr<const Epoch> epoch(int64_t number) const;
  void read_stream(const Epoch& epoch, int64_t begin, Sample& sample) const;
  void read_in_order(int64_t begin, Sample& sample) const;

  std::shared_ptr<const IndexedDataset> dataset_;
  CorpusViewOptions options_;
  int64_t samples_per_epoch_ = 0;
  mutable std::mutex mutex_;
  mutable std::vector<std::shared_ptr<Epoch>> recent_;  // the most recently used epochs, newest first
};

}  // namespace te::data
