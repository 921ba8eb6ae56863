// The sampler: sample k of a run is a pure function of (data, seed, k), independent of the number of ranks, the batch
// size, and the step at which a run was resumed. A rank requests only the samples that it trains on.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace te::data {

/// B samples of S tokens, row-major. targets[i] is the token after tokens[i], or negative if it is not in the loss
/// (core/targets.h).
struct Batch {
  std::vector<int32_t> tokens;   ///< [B, S]
  std::vector<int32_t> targets;  ///< [B, S]
  /// [B, S], or empty if not requested: the position in the row at which the document of each token begins. A token i
  /// attends to positions document_start[i] to i, so attention does not cross document boundaries.
  std::vector<int32_t> document_start;
};

class BatchSource {
 public:
  static constexpr int64_t kEndless = INT64_MAX;

  virtual ~BatchSource() = default;

  /// Writes samples [first_sample, first_sample + count) to tokens, targets and, unless it is null, document_start (see
  /// Batch), each [count, seq_length()]. Samples from num_samples() are padding (tokens 0, targets kPaddingTarget), so
  /// an incomplete last batch of a validation set needs no special case. Padding inside a sample is a separate
  /// document. Thread safe; a sample has the same tokens in every call.
  void fill(int64_t first_sample, int64_t count, int32_t* tokens, int32_t* targets,
            int32_t* document_start = nullptr) const;

  /// kEndless for training data (any number of epochs), the number of distinct samples for validation data.
  virtual int64_t num_samples() const = 0;

  /// One line for the log at the start of a run: the data and its size.
  virtual std::string describe() const = 0;

  /// The prefixes of the datasets; empty if there are none.
  virtual std::vector<std::string> sources() const { return {}; }
  /// For each sample of [first_sample, first_sample + count), all below num_samples(): the index of its dataset in
  /// sources().
  virtual std::vector<int32_t> sources_of(int64_t first_sample, int64_t count) const;

  int64_t seq_length() const { return seq_length_; }
  Batch batch(int64_t first_sample, int64_t count, bool with_document_start = false) const;

 protected:
  explicit BatchSource(int64_t seq_length) : seq_length_(seq_length) {}
  /// All `count` samples are below num_samples(); document_start may be null.
  virtual void fill_samples(int64_t first_sample, int64_t count, int32_t* tokens, int32_t* targets,
                            int32_t* document_start) const = 0;

 private:
  int64_t seq_length_;
};

struct WeightedDataset {
  double weight = 1.0;
  std::string prefix;  ///< the dataset is PREFIX.bin and PREFIX.idx
};

struct IndexedSourceOptions {
  int64_t seq_length = 0;
  int64_t vocab_size = 0;  ///< every token that is read must be below it
  uint64_t seed = 0;
  bool shuffle = true;             ///< true: training, endless; false: validation, in order, each target once
  int64_t max_samples = 0;         ///< validation: at most this many samples; 0 for all
  bool eod_mask_loss = false;      ///< pretraining: no loss on the first token of a document
  bool drop_overlong = false;      ///< instructions: drop conversations of more than seq_length + 1 tokens
  std::string key = "data.train";  ///< the config key that errors name
};

/// Blended Megatron datasets. UserError for an empty list, a weight that is not positive, weights with an infinite sum,
/// and a dataset that cannot be read or is too small for one sample.
std::unique_ptr<BatchSource> make_indexed_source(const std::vector<WeightedDataset>& datasets,
                                                 const IndexedSourceOptions& options);

/// Blended instruction datasets (tokens with a loss mask, created by te-data instruct): whole conversations are packed
/// into samples, with the loss on the responses; see instruction_view.h. The same UserErrors.
std::unique_ptr<BatchSource> make_instruction_source(const std::vector<WeightedDataset>& datasets,
                                                     const IndexedSourceOptions& options);

/// Uniformly random tokens, for benchmarks: endless and without files.
std::unique_ptr<BatchSource> make_synthetic_source(int64_t seq_length, int64_t vocab_size, uint64_t seed);

}  // namespace te::data
