// One dataset seen as an endless (shuffled) or finite (ordered) list of samples of seq_length + 1 tokens.
//
// Shuffled, for training: in every epoch the documents are put in a new order and concatenated; the stream is
// cut at multiples of seq_length (sample j has tokens [j * S, j * S + S]: it predicts S tokens, and shares
// one with its neighbour), and the samples of the epoch are shuffled too. Fewer than S + 1 tokens at the end
// of an epoch are left out. Samples beyond an epoch belong to the next, shuffled with another key.
//
// Ordered, for validation: documents as they lie in the file, every token predicted exactly once; the last
// sample is padded.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "data/indexed_dataset.h"
#include "data/permutation.h"

namespace te {

class CorpusView {
 public:
  /// UserError when the dataset is too small for one sample. `stream` separates the datasets of a blend.
  CorpusView(std::shared_ptr<const IndexedDataset> dataset, int64_t seq_length, int64_t vocab_size,
             uint64_t seed, uint64_t stream, bool shuffle);

  int64_t samples_per_epoch() const { return samples_per_epoch_; }
  const IndexedDataset& dataset() const { return *dataset_; }

  /// The S + 1 tokens of sample `index`, a pure function of (dataset, seed, stream, index). Returns how many
  /// are real: less than S + 1 only for the last sample of an ordered view (the rest is set to 0). Thread
  /// safe.
  int64_t read(int64_t index, int32_t* tokens) const;

 private:
  struct Epoch;  // the order of one epoch's documents
  std::shared_ptr<const Epoch> epoch(int64_t number) const;
  void read_stream(const Epoch& epoch, int64_t begin, int64_t count, int32_t* tokens) const;

  std::shared_ptr<const IndexedDataset> dataset_;
  int64_t seq_length_, vocab_size_;
  uint64_t seed_, stream_;
  bool shuffle_;
  int64_t samples_per_epoch_ = 0;
  mutable std::mutex mutex_;
  mutable std::vector<std::shared_ptr<const Epoch>> recent_;  // the last epochs used, newest first
};

}  // namespace te
