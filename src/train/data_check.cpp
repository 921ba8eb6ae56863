#include "train/data_check.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/kept_files.h"
#include "core/error.h"
#include "core/log.h"
#include "data/dataset_check.h"
#include "data/loss_mask.h"
#include "text/tokenizer.h"
#include "text/tokenizer_hash.h"
#include "train/batches.h"
#include "train/kept_tokenizer.h"

namespace te::train {

namespace {

namespace fs = std::filesystem;

void add_datasets(const std::string& key, const std::vector<std::string>& prefixes,
                  const std::vector<data::DatasetFingerprint>& fingerprints,
                  std::vector<checkpoint::Dataset>& datasets) {
  for (size_t i = 0; i < prefixes.size(); ++i) {
    const data::DatasetFingerprint& it = fingerprints[i];
    datasets.push_back({key, prefixes[i], it.documents, it.tokens, it.hash});
  }
}

/// The line about a file of a planned run that does not exist on this machine.
std::string not_checked(const std::string& key, const std::string& path) {
  return fmt::format("warning: {}: {} does not exist on this machine: not checked", key, path);
}

/// Removes sources that do not exist on this machine, and appends a line for each.
void leave_out_missing(const std::string& key, std::vector<config::DataSource>& sources,
                       std::vector<std::string>& lines) {
  std::erase_if(sources, [&](const config::DataSource& source) {
    std::error_code error;
    // If only one of the two files is missing, check_data() reports it.
    for (const char* suffix : {".idx", ".bin"})
      if (fs::symlink_status(source.prefix + suffix, error).type() != fs::file_type::not_found) return false;
    lines.push_back(not_checked(key, source.prefix + ".idx"));
    return true;
  });
}

}  // namespace

std::string content_of(const checkpoint::Dataset& dataset) {
  return fmt::format("{} documents, {} tokens, xxh3:{:016x}", dataset.documents, dataset.tokens,
                     dataset.hash);
}

std::vector<checkpoint::Dataset> check_data(const config::DataConfig& data, int64_t vocab_size,
                                            const fs::path& kept_tokenizer) {
  const std::unique_ptr<text::Tokenizer> tokenizer = check_tokenizer(data.tokenizer, kept_tokenizer);
  data::DatasetCheck check = {.vocab_size = vocab_size,
                              .tokenizer = {},
                              .tokenizer_key = "data.tokenizer",
                              .any_tokenizer = !data.check,
                              .any_tokenizer_remedy = "set data.check to false"};
  if (tokenizer && data.check) {
    check.tokenizer = {.name = tokenizer->name(),
                       .hash = text::tokenizer_hash(*tokenizer),
                       .vocab_size = tokenizer->vocab_size(),
                       .end_of_document = tokenizer->end_of_document()};
  }
  std::vector<checkpoint::Dataset> datasets;
  const auto look_at = [&](const std::string& key, const std::vector<config::DataSource>& sources) {
    std::vector<std::string> prefixes, masks;
    for (const config::DataSource& source : sources) prefixes.push_back(source.prefix);
    add_datasets(key, prefixes, data::check_datasets(key, prefixes, check), datasets);
    if (data.format != config::DataFormat::instruct) {
      for (const std::string& prefix : prefixes)
        if (data::has_loss_mask(prefix))
          log_warning(
              "{}: {} has a loss mask, which data.format: pretrain does not use: all tokens count; set it to "
              "instruct",
              key, prefix);
      return;
    }
    std::vector<data::DatasetFingerprint> fingerprints;
    for (const std::string& prefix : prefixes) {
      if (!data::has_loss_mask(prefix)) continue;  // validation sets that are not opened may lack one
      masks.push_back(data::loss_mask_prefix(prefix));
      fingerprints.push_back(data::fingerprint_of(data::IndexedDataset(masks.back())));
    }
    add_datasets(key, masks, fingerprints, datasets);
  };
  look_at("data.train", data.train);
  for (const config::ValidationSet& set : data.valid) look_at(key_of(set), set.sources);
  return datasets;
}

std::string data_file_of(const std::string& prefix) {
  std::error_code error;
  const fs::path file = fs::absolute(prefix + ".bin", error);  // a missing relative path would stay relative
  const fs::path canonical = fs::weakly_canonical(file, error);
  return (error ? file : canonical).string();
}

void check_same_data(const std::string& checkpoint, const std::vector<checkpoint::Dataset>& saved,
                     const std::vector<checkpoint::Dataset>& now, bool refuse) {
  for (const checkpoint::Dataset& dataset : now) {
    auto before = std::ranges::find(saved, dataset.prefix, &checkpoint::Dataset::prefix);
    if (before == saved.end()) {  // perhaps spelled differently
      before = std::ranges::find(saved, data_file_of(dataset.prefix),
                                 [](const checkpoint::Dataset& other) { return data_file_of(other.prefix); });
    }
    if (before == saved.end() || content_of(*before) == content_of(dataset)) continue;
    const std::string difference =
        fmt::format("{}: {} is not the data of {} ({} then, {} now)", dataset.key, dataset.prefix, checkpoint,
                    content_of(*before), content_of(dataset));
    if (refuse) {
      user_error(
          "{}; restore the earlier dataset, give the new one another prefix, or set "
          "data.check to false",
          difference);
    }
    log_warning("{}; the run continues with it (data.check: false)", difference);
  }
}

bool has_tokenizer(const config::Config& config) {
  std::error_code error;
  const std::string& spec = config.data.tokenizer;
  return spec.empty() || spec == "bytes" || fs::exists(spec, error) ||
         !kept_by_resumed(config.checkpoint).empty();
}

bool has_task_data(const config::Config& config) {
  std::error_code error;
  return fs::exists(config.evaluation.data, error);
}

std::vector<std::string> missing_decoder_files(const config::Config& config) {
  std::vector<std::string> lines;
  const bool tasks = config.evaluation.every > 0;
  if ((tasks || config.logging.generate_every > 0) && !has_tokenizer(config))
    lines.push_back(not_checked("data.tokenizer", config.data.tokenizer));
  if (tasks && !has_task_data(config))
    lines.push_back(not_checked("evaluation.data", config.evaluation.data));
  return lines;
}

std::vector<std::string> check_planned_data(const config::Config& config) {
  std::vector<std::string> lines = missing_decoder_files(config);
  std::error_code error;
  const std::string& resume = config.checkpoint.resume;
  for (const auto& [key, path] : {std::pair{"checkpoint.init_from", config.checkpoint.init_from},
                                  {"adapter.init_from", config.adapter.init_from},
                                  {"checkpoint.resume", resume == "never" || resume == "auto" ? "" : resume}})
    if (!path.empty() && !fs::exists(path, error)) lines.push_back(not_checked(key, path));
  config::DataConfig data = config.data;
  if (data.synthetic) return lines;
  leave_out_missing("data.train", data.train, lines);
  for (config::ValidationSet& set : data.valid) leave_out_missing(key_of(set), set.sources, lines);
  std::erase_if(data.valid, [](const config::ValidationSet& set) { return set.sources.empty(); });
  if (!has_tokenizer(config)) {
    const std::string line = not_checked("data.tokenizer", data.tokenizer);
    if (std::ranges::find(lines, line) == lines.end()) lines.push_back(line);
    data.tokenizer.clear();
  }
  check_data(data, config.model.vocab_size, kept_by_resumed(config.checkpoint));
  const bool has_train = !data.train.empty();
  data.synthetic = !has_train;
  const Batches batches(BatchOptions{
      .data = data,
      .seq_length = config.model.seq_length,
      .vocab_size = config.model.vocab_size,
      .seed = config.training.seed,
      .micro_batch_size = config.training.micro_batch_size,
      .eval_microbatches = config.training.eval_interval > 0 ? config.training.eval_microbatches : 0});
  const std::vector<std::string> opened = batches.describe();
  lines.insert(lines.begin(), opened.begin() + (has_train ? 0 : 1), opened.end());
  return lines;
}

}  // namespace te::train
