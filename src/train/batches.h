// The data of a run: opens the training and validation sets and reads what a data rank trains and validates on, and of
// its sequences the tokens of one context rank. Knows neither devices nor other ranks.
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
  int64_t eval_microbatches = 0;  ///< of one evaluation; 0: no validation
  int context_rank = 0, context_ranks = 1;
};

/// How messages name a validation set of data.valid.
std::string key_of(const config::ValidationSet& set);

class Batches {
 public:
  /// Opens the datasets. UserError when one cannot be read or is too small.
  explicit Batches(BatchOptions options);

  /// What the training and validation sets are, a line each.
  std::vector<std::string> describe() const;

  // Tokens and targets of a sequence are those of the context rank, document starts those of all tokens.

  /// Training samples [first_sample, first_sample + samples) into `batch`, whose buffers hold so many. Returns how many
  /// targets in them count in the loss. UserError as microbatch().
  int64_t read(int64_t first_sample, int64_t samples, HostBatch& batch) const;
  /// The training microbatch from `first_sample` on.
  data::Batch training(int64_t first_sample) const { return microbatch(*train_, first_sample); }

  /// The datasets of training samples, and which of them each of so many samples is from.
  std::vector<std::string> training_sources() const { return train_->sources(); }
  std::vector<int32_t> sources_of(int64_t first_sample, int64_t samples) const {
    return train_->sources_of(first_sample, samples);
  }

  /// Validation sets in the config's order; none without validation.
  size_t validation_sets() const { return valid_.size(); }
  const std::string& validation_name(size_t set) const { return options_.data.valid.at(set).name; }
  int64_t validation_samples(size_t set) const { return valid_.at(set)->num_samples(); }
  /// The microbatch of a validation set from `first_sample` on; samples beyond the last one count for nothing.
  data::Batch validation(size_t set, int64_t first_sample) const {
    return microbatch(*valid_.at(set), first_sample);
  }

  /// A microbatch that counts for nothing.
  data::Batch nothing() const;

  static HostMicrobatch view(const data::Batch& batch);
  /// Targets that count in the loss.
  static int64_t counted(const int32_t* targets, int64_t size);

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
