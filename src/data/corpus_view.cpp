// Epochs, the order of documents within an epoch, and its division into samples.
//
// The order of an epoch is a Permutation. Only the start position of every 64th document is stored: a query finds the
// block by binary search and continues document by document.
#include "data/corpus_view.h"

#include <algorithm>

#include "core/error.h"
#include "core/targets.h"
#include "data/epoch_permutation.h"
#include "data/sampler.h"

namespace te::data {
namespace {

constexpr int64_t kBlock = 64;

}  // namespace

struct CorpusView::Epoch {
  Epoch(int64_t epoch, int64_t num_documents, int64_t num_samples, const CorpusViewOptions& options)
      : number(epoch),
        documents(epoch_permutation(num_documents, options.seed, options.stream, "data.documents", epoch)),
        samples(epoch_permutation(num_samples, options.seed, options.stream, "data.samples", epoch)) {}

  int64_t number;
  Permutation documents, samples;
  std::once_flag counted;  // `starts` is computed
  // Positions in the epoch's token sequence at which documents 0, 64, 128, ... of its order start, and its end.
  std::vector<int64_t> starts;
};

struct CorpusView::Sample {
  explicit Sample(int64_t seq_length)
      : tokens(static_cast<size_t>(seq_length + 1)), starts(static_cast<size_t>(seq_length + 1)) {}
  int64_t remaining() const { return static_cast<int64_t>(tokens.size()) - filled; }

  /// Appends `count` tokens of one document; the caller writes them to the returned address.
  int32_t* extend(int64_t count) {
    std::fill_n(starts.begin() + filled, count, static_cast<int32_t>(filled));
    filled += count;
    return tokens.data() + filled - count;
  }

  std::vector<int32_t> tokens, starts;
  int64_t filled = 0;
};

CorpusView::CorpusView(std::shared_ptr<const IndexedDataset> dataset, const CorpusViewOptions& options)
    : dataset_(std::move(dataset)), options_(options) {
  const int64_t seq_length = options_.seq_length, tokens = dataset_->num_tokens();
  TE_CHECK(seq_length > 0, "seq_length {} must be positive", seq_length);
  if (options_.shuffle && tokens < seq_length + 1) {
    user_error(
        "{}: has {} tokens, but a sample needs seq_length + 1 = {} + 1 = {}; use more text or a shorter "
        "seq_length",
        dataset_->prefix(), tokens, seq_length, seq_length + 1);
  }
  if (tokens < 2) {
    user_error("{}: has {} tokens, but validation needs at least 2 (one input, one target); use more text",
               dataset_->prefix(), tokens);
  }
  samples_per_epoch_ = options_.shuffle ? (tokens - 1) / seq_length : (tokens - 2) / seq_length + 1;
}

std::shared_ptr<CorpusView::Epoch> CorpusView::find_epoch(int64_t number) const {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find_if(
      recent_, [&](const std::shared_ptr<Epoch>& epoch) { return epoch->number == number; });
  if (found != recent_.end()) {
    std::rotate(recent_.begin(), found, found + 1);
    return recent_.front();
  }
  recent_.insert(recent_.begin(),
                 std::make_shared<Epoch>(number, dataset_->num_documents(), samples_per_epoch_, options_));
  if (recent_.size() > kRecentEpochs) recent_.pop_back();
  return recent_.front();
}

// The lock is not held while the documents are counted, so other threads can read the previous epoch.
std::shared_ptr<const CorpusView::Epoch> CorpusView::epoch(int64_t number) const {
  const std::shared_ptr<Epoch> epoch = find_epoch(number);
  std::call_once(epoch->counted, [&] {
    epoch->starts = block_starts(epoch->documents, kBlock, [&](int64_t first, std::span<int64_t> lengths) {
      dataset_->read_document_lengths(first, lengths);
    });
  });
  return epoch;
}

void CorpusView::read_stream(const Epoch& epoch, int64_t begin, Sample& sample) const {
  const auto block = std::ranges::upper_bound(epoch.starts, begin) - epoch.starts.begin() - 1;
  int64_t position = epoch.starts[static_cast<size_t>(block)];
  for (int64_t i = block * kBlock; sample.remaining() > 0; ++i) {
    const IndexedDataset::Extent document = dataset_->document(epoch.documents(i));
    const int64_t skip = begin - position;
    if (skip < document.length()) {
      const int64_t part = std::min(document.length() - skip, sample.remaining());
      dataset_->read(document.begin + skip, part, sample.extend(part), options_.vocab_size);
      begin += part;
    }
    position += document.length();
  }
}

void CorpusView::read_in_order(int64_t begin, Sample& sample) const {
  const int64_t end = std::min(begin + sample.remaining(), dataset_->num_tokens());
  for (int64_t document = dataset_->document_at(begin); begin < end; ++document) {
    const int64_t part = std::min(dataset_->document(document).end, end) - begin;
    dataset_->read(begin, part, sample.extend(part), options_.vocab_size);
    begin += part;
  }
}

void CorpusView::read(int64_t index, const SampleRow& row) const {
  TE_CHECK(index >= 0 && (options_.shuffle || index < samples_per_epoch_), "{}: sample {} of {}",
           dataset_->prefix(), index, samples_per_epoch_);
  const int64_t length = options_.seq_length;
  Sample sample(length);
  if (options_.shuffle) {
    const auto order = epoch(index / samples_per_epoch_);
    read_stream(*order, order->samples(index % samples_per_epoch_) * length, sample);
  } else {
    read_in_order(index * length, sample);
  }
  const int64_t real = sample.filled;
  std::fill_n(sample.extend(sample.remaining()), length + 1 - real, 0);
  std::copy_n(sample.tokens.begin(), length, row.tokens);
  std::copy_n(sample.tokens.begin() + 1, length, row.targets);
  if (real <= length) {
    row.targets[real - 1] = kIgnoredTarget;
    std::fill(row.targets + real, row.targets + length, kPaddingTarget);
  }
  if (row.document_start != nullptr) std::copy_n(sample.starts.begin(), length, row.document_start);
  if (!options_.eod_mask_loss) return;
  for (int64_t i = 0; i < length; ++i) {
    if (sample.starts[static_cast<size_t>(i + 1)] == i + 1) row.targets[i] = kIgnoredTarget;
  }
}

}  // namespace te::data
