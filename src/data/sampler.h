// The sampler: sample k of a run is a pure function of (data, seed, k), whatever the number of ranks, the
// batch size or where a run was resumed. A rank that trains samples [first, first + count) asks for just
// those.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace te::data {

/// B samples of S tokens, row after row. targets[i] is the token that follows tokens[i]; -1 is not counted in
/// the loss.
struct Batch {
  std::vector<int32_t> tokens;   ///< [B, S]
  std::vector<int32_t> targets;  ///< [B, S]
  /// [B, S], or empty when it was not asked for: position in the row at which the document of each token
  /// begins. A token may attend to positions document_start[i] to i, so attention stays inside a document.
  std::vector<int32_t> document_start;
};

class BatchSource {
 public:
  static constexpr int64_t kEndless = INT64_MAX;
  static constexpr int32_t kIgnoredTarget = -1;

  virtual ~BatchSource() = default;

  /// Samples [first_sample, first_sample + count) into tokens and targets and, unless it is null,
  /// document_start (see Batch), each [count, seq_length()]. Samples at or beyond num_samples() are all token
  /// 0 with target -1, so a ragged last batch of a validation set needs no special case; padding inside a
  /// sample is a document of its own. Thread safe; the same sample has the same tokens in every call.
  void fill(int64_t first_sample, int64_t count, int32_t* tokens, int32_t* targets,
            int32_t* document_start = nullptr) const;

  /// kEndless for training data (epochs follow one another), the number of distinct samples for validation
  /// data.
  virtual int64_t num_samples() const = 0;

  /// One line for the start of a run: what is read and how much of it there is.
  virtual std::string describe() const = 0;

  /// The datasets that samples come from, as they were named; empty where there is none.
  virtual std::vector<std::string> sources() const { return {}; }
  /// Which of them each of the samples [first_sample, first_sample + count) is from; all are below num_samples().
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
  std::string prefix;  ///< of PREFIX.bin and PREFIX.idx
};

struct IndexedSourceOptions {
  int64_t seq_length = 0;
  int64_t vocab_size = 0;  ///< every token read must be below it
  uint64_t seed = 0;
  bool shuffle = true;             ///< true: training, endless; false: validation, in order, each token once
  int64_t max_samples = 0;         ///< validation: at most this many samples; 0 for all
  bool eod_mask_loss = false;      ///< pretraining: no loss on the first token of a document
  bool drop_overlong = false;      ///< instructions: leave conversations above seq_length + 1 tokens out
  std::string key = "data.train";  ///< the config key that errors name
};

/// Blended Megatron datasets. UserError for an empty list, a weight that is not positive, a dataset that
/// cannot be read, or one that is too small for a sample.
std::unique_ptr<BatchSource> make_indexed_source(const std::vector<WeightedDataset>& datasets,
                                                 const IndexedSourceOptions& options);

/// Blended instruction datasets (tokens with a loss mask, made by te-data instruct): conversations packed whole
/// into samples, loss on the responses; see instruction_view.h. UserErrors as above.
std::unique_ptr<BatchSource> make_instruction_source(const std::vector<WeightedDataset>& datasets,
                                                     const IndexedSourceOptions& options);

/// Uniformly random tokens, for benchmarks: an endless source that reads no file.
std::unique_ptr<BatchSource> make_synthetic_source(int64_t seq_length, int64_t vocab_size, uint64_t seed);

}  // namespace te::data
