// One dataset seen as an endless (shuffled) or finite (ordered) list of samples of seq_length + 1 tokens.
//
// Shuffled, for training: in every epoch the documents are put in a new order and concatenated; the stream is
// cut at multiples of seq_length (sample j has tokens [j * S, j * S + S]: it predicts S tokens, and shares
// one with its neighbour), and the samples of the epoch are shuffled too. Fewer than S + 1 tokens at the end
// of an epoch are left out. Samples beyond an epoch belong to the next, shuffled with another key.
//
// Ordered, for validation: documents as they lie in the file, every token predicted exactly once; the last
// sample is padded: tokens 0 with target -1, which count as a document of their own.
//
// Where documents begin is taken from the dataset's index, so it does not depend on an end-of-document token.
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
  int64_t vocab_size = 0;  ///< every token read must be below it
  uint64_t seed = 0;
  uint64_t stream = 0;  ///< separates the datasets of a blend
  bool shuffle = true;
  bool eod_mask_loss = false;  ///< targets that begin a document are -1
};

class CorpusView : public SampleView {
 public:
  /// UserError when the dataset is too small for one sample.
  CorpusView(std::shared_ptr<const IndexedDataset> dataset, const CorpusViewOptions& options);

  int64_t samples_per_epoch() const { return samples_per_epoch_; }
  Counts counts() const override {
    return {dataset_->num_tokens(), dataset_->num_documents(), samples_per_epoch_, ""};
  }
  const std::string& prefix() const override { return dataset_->prefix(); }
  void read(int64_t index, const SampleRow& row) const override;

 private:
  struct Epoch;   // the order of one epoch's documents
  struct Sample;  // S + 1 tokens and where their documents begin
  std::shared_ptr<Epoch> find_epoch(int64_t number) const;
  std::shared_ptr<const Epoch> epoch(int64_t number) const;
  void read_stream(const Epoch& epoch, int64_t begin, Sample& sample) const;
  void read_in_order(int64_t begin, Sample& sample) const;

  std::shared_ptr<const IndexedDataset> dataset_;
  CorpusViewOptions options_;
  int64_t samples_per_epoch_ = 0;
  mutable std::mutex mutex_;
  mutable std::vector<std::shared_ptr<Epoch>> recent_;  // the last epochs used, newest first
};

}  // namespace te::data
