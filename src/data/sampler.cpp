// Sources of batches: blended datasets and random tokens.
#include "data/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"
#include "core/random.h"
#include "core/targets.h"
#include "data/blend.h"
#include "data/corpus_view.h"
#include "data/instruction_view.h"

namespace te::data {
namespace {

class BlendedSource : public BatchSource {
 public:
  BlendedSource(std::vector<std::unique_ptr<SampleView>> views, std::unique_ptr<Blend> blend,
                const IndexedSourceOptions& options)
      : BatchSource(options.seq_length),
        views_(std::move(views)),
        blend_(std::move(blend)),
        options_(options) {}

  int64_t num_samples() const override {
    const int64_t available = blend_->num_samples();
    return options_.max_samples > 0 ? std::min(options_.max_samples, available) : available;
  }

  void fill_samples(int64_t first_sample, int64_t count, int32_t* tokens, int32_t* targets,
                    int32_t* document_start) const override {
    int64_t at = 0;
    for (const Blend::Item& item : blend_->items(first_sample, count)) {
      int32_t* starts = document_start != nullptr ? document_start + at : nullptr;
      views_[static_cast<size_t>(item.dataset)]->read(item.sample, {tokens + at, targets + at, starts});
      at += seq_length();
    }
  }

  std::vector<std::string> sources() const override {
    std::vector<std::string> names;
    for (const auto& view : views_) names.push_back(view->prefix());
    return names;
  }

  std::vector<int32_t> sources_of(int64_t first_sample, int64_t count) const override {
    std::vector<int32_t> sources;
    for (const Blend::Item& item : blend_->items(first_sample, count)) sources.push_back(item.dataset);
    return sources;
  }

  std::string describe() const override {
    int64_t tokens = 0, documents = 0, samples = 0;
    std::string notes;  // the notes of all datasets
    for (const auto& view : views_) {
      const SampleView::Counts counts = view->counts();
      tokens += counts.tokens;
      documents += counts.documents;
      samples += counts.samples;
      if (!counts.note.empty()) notes += fmt::format("{}{}", notes.empty() ? "; " : " | ", counts.note);
    }
    const std::string text = fmt::format("{} ({} dataset{}): {} tokens, {} documents, ", views_[0]->prefix(),
                                         views_.size(), views_.size() == 1 ? "" : "s", tokens, documents);
    return text +
           (options_.shuffle ? fmt::format("{} samples per epoch, shuffled", samples)
                             : fmt::format("{} of {} samples, in order", num_samples(), samples)) +
           notes;
  }

 private:
  std::vector<std::unique_ptr<SampleView>> views_;
  std::unique_ptr<Blend> blend_;
  IndexedSourceOptions options_;
};

class SyntheticBatchSource : public BatchSource {
 public:
  SyntheticBatchSource(int64_t seq_length, int64_t vocab_size, uint64_t seed)
      : BatchSource(seq_length), vocab_size_(vocab_size), seed_(seed) {}

  int64_t num_samples() const override { return kEndless; }

  void fill_samples(int64_t first_sample, int64_t count, int32_t* tokens, int32_t* targets,
                    int32_t* document_start) const override {
    const int64_t length = seq_length();
    if (document_start != nullptr) std::fill_n(document_start, count * length, 0);
    const int64_t blocks = length / 4 + 1;  // four tokens each, length + 1 in all
    const uint64_t stream = stream_of("data.synthetic");
#pragma omp parallel for if (count * blocks >= 4096)
    for (int64_t row = 0; row < count; ++row) {
      for (int64_t block = 0; block < blocks; ++block) {
        const Philox4 random =
            philox(seed_, stream, static_cast<uint64_t>((first_sample + row) * blocks + block));
        for (int64_t i = 0; i < 4; ++i) {
          const int64_t at = 4 * block + i;
          const auto token =
              static_cast<int32_t>((random.word[i] * static_cast<uint64_t>(vocab_size_)) >> 32);
          if (at < length) tokens[row * length + at] = token;
          if (at >= 1 && at <= length) targets[row * length + at - 1] = token;
        }
      }
    }
  }

  std::string describe() const override {
    return fmt::format("synthetic: uniformly random tokens below {}", vocab_size_);
  }

 private:
  int64_t vocab_size_;
  uint64_t seed_;
};

}  // namespace

void BatchSource::fill(int64_t first_sample, int64_t count, int32_t* tokens, int32_t* targets,
                       int32_t* document_start) const {
  TE_CHECK(first_sample >= 0 && count >= 0, "samples [{}, {} + {}): the range must not be negative",
           first_sample, first_sample, count);
  const int64_t real = std::clamp<int64_t>(num_samples() - first_sample, 0, count);
  if (real > 0) fill_samples(first_sample, real, tokens, targets, document_start);
  const int64_t begin = real * seq_length(), end = count * seq_length();
  std::fill(tokens + begin, tokens + end, 0);
  std::fill(targets + begin, targets + end, kPaddingTarget);
  if (document_start != nullptr) std::fill(document_start + begin, document_start + end, 0);
}

std::vector<int32_t> BatchSource::sources_of(int64_t, int64_t count) const {
  return std::vector<int32_t>(static_cast<size_t>(count), 0);
}

Batch BatchSource::batch(int64_t first_sample, int64_t count, bool with_document_start) const {
  const auto size = static_cast<size_t>(count * seq_length());
  Batch batch = {std::vector<int32_t>(size), std::vector<int32_t>(size),
                 std::vector<int32_t>(with_document_start ? size : 0)};
  fill(first_sample, count, batch.tokens.data(), batch.targets.data(),
       with_document_start ? batch.document_start.data() : nullptr);
  return batch;
}

namespace {

/// Opens every dataset with open_view(dataset, index in the list) and blends the views.
template <class OpenView>
std::unique_ptr<BatchSource> make_blended_source(const std::vector<WeightedDataset>& datasets,
                                                 const IndexedSourceOptions& options, OpenView open_view) {
  TE_CHECK(options.seq_length > 0 && options.vocab_size > 0,
           "{}: seq_length {}, vocab_size {} must be positive", options.key, options.seq_length,
           options.vocab_size);
  if (datasets.empty()) user_error("{}: names no dataset; give a list of [weight, prefix]", options.key);
  std::vector<std::unique_ptr<SampleView>> views;
  std::vector<double> weights;
  std::vector<int64_t> limits;
  for (const WeightedDataset& item : datasets) {
    if (!(item.weight > 0.0) || !std::isfinite(item.weight)) {
      user_error("{}: weight {} of {} must be positive; correct it or drop the dataset", options.key,
                 item.weight, item.prefix);
    }
    views.push_back(open_view(std::make_shared<IndexedDataset>(item.prefix), views.size()));
    weights.push_back(item.weight);
    limits.push_back(options.shuffle ? Blend::kEndless : views.back()->counts().samples);
  }
  if (!std::isfinite(std::accumulate(weights.begin(), weights.end(), 0.0)))
    user_error("{}: the sum of the weights is too large; divide all weights by a number", options.key);
  auto blend = std::make_unique<Blend>(std::move(weights), std::move(limits));
  return std::make_unique<BlendedSource>(std::move(views), std::move(blend), options);
}

}  // namespace

std::unique_ptr<BatchSource> make_indexed_source(const std::vector<WeightedDataset>& datasets,
                                                 const IndexedSourceOptions& options) {
  return make_blended_source(
      datasets, options, [&](std::shared_ptr<const IndexedDataset> dataset, uint64_t stream) {
        return std::make_unique<CorpusView>(std::move(dataset),
                                            CorpusViewOptions{.seq_length = options.seq_length,
                                                              .vocab_size = options.vocab_size,
                                                              .seed = options.seed,
                                                              .stream = stream,
                                                              .shuffle = options.shuffle,
                                                              .eod_mask_loss = options.eod_mask_loss});
      });
}

std::unique_ptr<BatchSource> make_instruction_source(const std::vector<WeightedDataset>& datasets,
                                                     const IndexedSourceOptions& options) {
  return make_blended_source(
      datasets, options, [&](std::shared_ptr<const IndexedDataset> dataset, uint64_t stream) {
        return std::make_unique<InstructionView>(
            std::move(dataset), InstructionViewOptions{.seq_length = options.seq_length,
                                                       .vocab_size = options.vocab_size,
                                                       .seed = options.seed,
                                                       .stream = stream,
                                                       .shuffle = options.shuffle,
                                                       .drop_overlong = options.drop_overlong});
      });
}

std::unique_ptr<BatchSource> make_synthetic_source(int64_t seq_length, int64_t vocab_size, uint64_t seed) {
  TE_CHECK(seq_length > 0 && vocab_size > 0 && vocab_size <= INT32_MAX,
           "synthetic data: seq_length {}, vocab_size {}", seq_length, vocab_size);
  return std::make_unique<SyntheticBatchSource>(seq_length, vocab_size, seed);
}

}  // namespace te::data
