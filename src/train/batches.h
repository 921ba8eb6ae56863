// The training and validation datasets of a run, and the samples that a data-parallel rank reads from them. With
// context parallelism only this rank's tokens of each sequence are read. Independent of devices and of the other ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "config/config.h"
#include "data/sampler.h"
#include "parallel/sequence_split.h"
#include "train/step_runner.h"

namespace te::train {

struct BatchOptions {
  config::DataConfig data;
  int64_t seq_length = 0, vocab_size = 0;
  uint64_t seed = 0;
  int64_t micro_batch_size = 0;   ///< sequences
  int64_t eval_microbatches = 0;  ///< per evaluation; 0: no validation
  int context_rank = 0, context_ranks = 1;
};

/// The name of a data.valid set in messages.
std::string key_of(const config::ValidationSet& set);

class Batches {
 public:
  /// Opens the datasets. UserError when one cannot be read or is too small.
  explicit Batches(BatchOptions options);

  /// One line per training and validation set.
  std::vector<std::string> describe() const;

  // Tokens and targets hold this context-parallel rank's tokens; document starts cover all tokens of a sequence.

  /// Reads training samples [first_sample, first_sample + samples) into `batch`, whose buffers must be large enough.
  /// Returns the number of targets that count in the loss. Throws UserError like microbatch().
  int64_t read(int64_t first_sample, int64_t samples, HostBatch& batch) const;
  /// The training microbatch that starts at `first_sample`.
  data::Batch training(int64_t first_sample) const { return microbatch(*train_, first_sample); }

  /// Names of the training datasets, and the dataset index of each sample.
  std::vector<std::string> training_sources() const { return train_->sources(); }
  std::vector<int32_t> sources_of(int64_t first_sample, int64_t samples) const {
    return train_->sources_of(first_sample, samples);
  }

  /// Validation sets in the config's order; none without validation.
  size_t validation_sets() const { return valid_.size(); }
  const std::string& validation_name(size_t set) const { return options_.data.valid.at(set).name; }
  int64_t validation_samples(size_t set) const { return valid_.at(set)->num_samples(); }
  /// The microbatch of a validation set that starts at `first_sample`; samples after the last one do not count in the
  /// loss.
  data::Batch validation(size_t set, int64_t first_sample) const {
    return microbatch(*valid_.at(set), first_sample);
  }

  /// A microbatch without targets that count in the loss.
  data::Batch nothing() const;

  static HostMicrobatch view(const data::Batch& batch);
  /// Number of targets that count in the loss.
  static int64_t counted(const int32_t* targets, int64_t size);
  /// Number of this rank's positions that are no padding.
  static int64_t unpadded(const HostBatch& batch);

 private:
  data::Batch microbatch(const data::BatchSource& source, int64_t first_sample) const;
  void check_documents(const int32_t* starts) const;
  void check_has_loss(const data::BatchSource& set, const std::string& key) const;

  BatchOptions options_;
  parallel::SequenceSplit split_;
  std::unique_ptr<data::BatchSource> train_;
  std::vector<std::unique_ptr<data::BatchSource>> valid_;
};

}  // namespace te::train
