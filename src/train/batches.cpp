#include "train/batches.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/targets.h"
#include "kernels/attention/attention.h"

namespace te::train {
namespace {

std::vector<data::WeightedDataset> datasets_of(const std::vector<config::DataSource>& sources) {
  std::vector<data::WeightedDataset> datasets;
  for (const config::DataSource& source : sources) datasets.push_back({source.weight, source.prefix});
  return datasets;
}

bool is_named(const config::ValidationSet& set) {
  return set.name != config::ValidationSet{}.name;
}

}  // namespace

std::string key_of(const config::ValidationSet& set) {
  return is_named(set) ? "data.valid: " + set.name : "data.valid";
}

Batches::Batches(BatchOptions options)
    : options_(std::move(options)),
      split_(options_.seq_length, options_.context_rank, options_.context_ranks) {
  const config::DataConfig& data = options_.data;
  data::IndexedSourceOptions source = {.seq_length = options_.seq_length,
                                       .vocab_size = options_.vocab_size,
                                       .seed = options_.seed,
                                       .eod_mask_loss = data.eod_mask_loss,
                                       .drop_overlong = data.overlong == config::Overlong::drop};
  const auto open = [&](const std::vector<config::DataSource>& sources) {
    const bool instruct = data.format == config::DataFormat::instruct;
    try {
      return instruct ? data::make_instruction_source(datasets_of(sources), source)
                      : data::make_indexed_source(datasets_of(sources), source);
    } catch (const UserError& error) {  // datasets do not know the config key
      const std::string message = error.what();
      if (message.starts_with(source.key)) throw;
      user_error("{}: {}", source.key, message);
    }
  };
  train_ = data.synthetic ? data::make_synthetic_source(options_.seq_length, options_.vocab_size, source.seed)
                          : open(data.train);
  if (data.valid.empty() || options_.eval_microbatches == 0) return;
  source.shuffle = false;
  source.max_samples = options_.eval_microbatches * options_.micro_batch_size;
  for (const config::ValidationSet& set : data.valid) {
    source.key = key_of(set);
    valid_.push_back(open(set.sources));
    check_has_loss(*valid_.back(), source.key);
  }
}

// Usually the first sample has such a token, and no more samples are read.
void Batches::check_has_loss(const data::BatchSource& set, const std::string& key) const {
  for (int64_t sample = 0; sample < set.num_samples(); ++sample) {
    const data::Batch batch = set.batch(sample, 1, false);
    if (counted(batch.targets.data(), options_.seq_length) > 0) return;
  }
  user_error(
      "{}: no token counts in the loss: data.eod_mask_loss masks all tokens of the {} evaluated samples "
      "(training.eval_microbatches * training.micro_batch_size, at most); use other data, or set "
      "data.eod_mask_loss to false",
      key, set.num_samples());
}

std::vector<std::string> Batches::describe() const {
  std::vector<std::string> lines = {"training data: " + train_->describe()};
  for (size_t set = 0; set < valid_.size(); ++set) {
    const std::string& name = validation_name(set);
    lines.push_back(fmt::format("validation data{}: {}", is_named(options_.data.valid[set]) ? " " + name : "",
                                valid_[set]->describe()));
  }
  return lines;
}

data::Batch Batches::nothing() const {
  const auto size = static_cast<size_t>(options_.micro_batch_size * split_.local()),
             whole = static_cast<size_t>(options_.micro_batch_size * options_.seq_length);
  return {std::vector<int32_t>(size), std::vector<int32_t>(size, kPaddingTarget),
          std::vector<int32_t>(options_.data.document_mask ? whole : 0)};
}

HostMicrobatch Batches::view(const data::Batch& batch) {
  return {batch.tokens.data(), batch.targets.data(),
          batch.document_start.empty() ? nullptr : batch.document_start.data()};
}

int64_t Batches::counted(const int32_t* targets, int64_t size) {
  return std::count_if(targets, targets + size, [](int32_t target) { return target >= 0; });
}

int64_t Batches::unpadded(const HostBatch& batch) {
  const auto* const targets = batch.targets.as<const int32_t>();
  const auto size = static_cast<int64_t>(batch.targets.bytes() / sizeof(int32_t));
  return size - std::count(targets, targets + size, kPaddingTarget);
}

// Attention's memory is planned for max_documents per sample.
void Batches::check_documents(const int32_t* starts) const {
  const int64_t micro = options_.micro_batch_size, most = micro * options_.data.max_documents;
  const int64_t count = kernels::count_documents(starts, micro, options_.seq_length);
  if (count <= most) return;
  user_error(
      "data.max_documents ({}) * training.micro_batch_size ({}) = {} is below the {} documents of a "
      "microbatch; raise "
      "data.max_documents to {} or more, or set data.document_mask to false",
      options_.data.max_documents, micro, most, count, (count + micro - 1) / micro);
}

int64_t Batches::read(int64_t first_sample, int64_t samples, HostBatch& batch) const {
  int32_t *tokens = batch.tokens.as<int32_t>(), *targets = batch.targets.as<int32_t>();
  int32_t* starts = batch.document_start.as<int32_t>();
  if (split_.ranks() == 1) {
    train_->fill(first_sample, samples, tokens, targets, starts);
  } else {
    const auto size = static_cast<size_t>(samples * options_.seq_length);
    std::vector<int32_t> all_tokens(size), all_targets(size);
    train_->fill(first_sample, samples, all_tokens.data(), all_targets.data(), starts);
    split_.copy_local(all_tokens.data(), samples, tokens);
    split_.copy_local(all_targets.data(), samples, targets);
  }
  for (int64_t first = 0; starts != nullptr && first < samples; first += options_.micro_batch_size)
    check_documents(starts + first * options_.seq_length);
  return counted(targets, samples * split_.local());
}

data::Batch Batches::microbatch(const data::BatchSource& source, int64_t first_sample) const {
  data::Batch batch = source.batch(first_sample, options_.micro_batch_size, options_.data.document_mask);
  if (options_.data.document_mask) check_documents(batch.document_start.data());
  for (std::vector<int32_t>* whole : {&batch.tokens, &batch.targets}) {
    std::vector<int32_t> own(static_cast<size_t>(options_.micro_batch_size * split_.local()));
    split_.copy_local(whole->data(), options_.micro_batch_size, own.data());
    *whole = std::move(own);
  }
  return batch;
}

}  // namespace te::train
