#include "data/instruction_view.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "core/targets.h"
#include "data/epoch_permutation.h"
#include "data/packing.h"
#include "data/sampler.h"

namespace te::data {

struct InstructionView::Epoch {
  int64_t number = 0;
  std::vector<int64_t> order;  // indices into conversations_; packing.items are indices into `order`
  Packing packing;
  Permutation samples;
};

InstructionView::InstructionView(std::shared_ptr<const IndexedDataset> dataset,
                                 const InstructionViewOptions& options)
    : dataset_(std::move(dataset)), mask_(*dataset_), options_(options) {
  TE_CHECK(options_.seq_length > 0, "seq_length {} must be positive", options_.seq_length);
  choose_conversations();
  if (conversations_.empty()) {
    user_error(
        "{}: none of its {} conversations can be used ({} are longer than seq_length + 1 = {}, {} have no "
        "response within it); use a longer seq_length or other data",
        dataset_->prefix(), dataset_->num_documents(), too_long_, options_.seq_length + 1, without_target_);
  }
  recent_.push_back(make_epoch(0));
  epoch_ends_.push_back(recent_.front()->packing.num_bins());
}

InstructionView::~InstructionView() = default;

void InstructionView::choose_conversations() {
  std::vector<int32_t> mask;
  for (int64_t i = 0; i < dataset_->num_documents(); ++i) {
    const int64_t length = dataset_->document_length(i);
    const int64_t kept = std::min(length, options_.seq_length + 1);
    if (kept < length && options_.drop_overlong) {
      ++too_long_;
      continue;
    }
    mask.resize(static_cast<size_t>(kept));
    mask_.read(dataset_->document_begin(i), kept, mask.data());
    const bool counts = kept >= 2 && std::find(mask.begin() + 1, mask.end(), 1) != mask.end();
    without_target_ += counts ? 0 : 1;
    if (!counts) continue;
    truncated_ += kept < length ? 1 : 0;
    conversations_.push_back(i);
    positions_.push_back(static_cast<int32_t>(kept - 1));
  }
}

std::shared_ptr<const InstructionView::Epoch> InstructionView::make_epoch(int64_t number) const {
  const auto count = static_cast<int64_t>(conversations_.size());
  std::vector<int64_t> order(conversations_.size());
  std::iota(order.begin(), order.end(), 0);
  if (options_.shuffle) {
    const Permutation shuffled =
        epoch_permutation(count, options_.seed, options_.stream, "data.documents", number);
    for (int64_t& item : order) item = shuffled(item);
  }
  std::vector<int32_t> lengths;
  lengths.reserve(order.size());
  for (const int64_t item : order) lengths.push_back(positions_[static_cast<size_t>(item)]);
  Packing packing = pack_best_fit(lengths, options_.seq_length);
  const int64_t bins = packing.num_bins();
  return std::make_shared<Epoch>(
      Epoch{number, std::move(order), std::move(packing),
            epoch_permutation(bins, options_.seed, options_.stream, "data.samples", number)});
}

std::shared_ptr<const InstructionView::Epoch> InstructionView::find_epoch(int64_t& index) const {
  const std::lock_guard lock(mutex_);
  const auto keep = [&](std::shared_ptr<const Epoch> epoch) {
    recent_.insert(recent_.begin(), std::move(epoch));
    if (recent_.size() > kRecentEpochs) recent_.pop_back();
  };
  while (epoch_ends_.back() <= index) {
    keep(make_epoch(static_cast<int64_t>(epoch_ends_.size())));
    epoch_ends_.push_back(epoch_ends_.back() + recent_.front()->packing.num_bins());
  }
  const int64_t number = std::ranges::upper_bound(epoch_ends_, index) - epoch_ends_.begin();
  if (number > 0) index -= epoch_ends_[static_cast<size_t>(number - 1)];
  for (const auto& epoch : recent_) {
    if (epoch->number == number) return epoch;
  }
  keep(make_epoch(number));
  return recent_.front();
}

void InstructionView::read(int64_t index, const SampleRow& row) const {
  TE_CHECK(index >= 0 && (options_.shuffle || index < epoch_ends_[0]), "{}: sample {}", prefix(), index);
  const auto epoch = find_epoch(index);
  const auto bin = static_cast<size_t>(options_.shuffle ? epoch->samples(index) : index);
  const int64_t length = options_.seq_length;
  std::vector<int32_t> tokens(static_cast<size_t>(length + 1)), mask(static_cast<size_t>(length + 1));
  int64_t at = 0;
  const auto fill_start = [&](int64_t count) {
    if (row.document_start != nullptr) std::fill_n(row.document_start + at, count, static_cast<int32_t>(at));
  };
  for (int64_t i = epoch->packing.begins[bin]; i < epoch->packing.begins[bin + 1]; ++i) {
    const auto conversation =
        static_cast<size_t>(epoch->order[static_cast<size_t>(epoch->packing.items[static_cast<size_t>(i)])]);
    const int64_t begin = dataset_->document_begin(conversations_[conversation]);
    const int64_t count = positions_[conversation];
    dataset_->read(begin, count + 1, tokens.data(), options_.vocab_size);
    mask_.read(begin, count + 1, mask.data());
    std::copy_n(tokens.begin(), count, row.tokens + at);
    for (int64_t k = 0; k < count; ++k) {
      const auto next = static_cast<size_t>(k + 1);
      row.targets[at + k] = mask[next] != 0 ? tokens[next] : kIgnoredTarget;
    }
    fill_start(count);
    at += count;
  }
  fill_start(length - at);
  std::fill(row.tokens + at, row.tokens + length, 0);
  std::fill(row.targets + at, row.targets + length, kPaddingTarget);
}

SampleView::Counts InstructionView::counts() const {
  const int64_t used = std::accumulate(positions_.begin(), positions_.end(), int64_t{0});
  const int64_t samples = epoch_ends_[0];  // without lock: set by the constructor and never changed
  std::string note = fmt::format("{:.1f}% filled", 100.0 * static_cast<double>(used) /
                                                       static_cast<double>(samples * options_.seq_length));
  if (truncated_ > 0) note += fmt::format(", {} truncated to seq_length + 1", truncated_);
  if (too_long_ > 0) note += fmt::format(", {} too long and dropped", too_long_);
  if (without_target_ > 0) note += fmt::format(", {} without a response dropped", without_target_);
  return {dataset_->num_tokens(), dataset_->num_documents(), samples, std::move(note)};
}

}  // namespace te::data
