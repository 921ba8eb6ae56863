#include "data/merge.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/error.h"
#include "data/command.h"
#include "data/dataset_check.h"
#include "data/indexed_dataset.h"
#include "data/loss_mask.h"

namespace te::data {
namespace {

struct MergeArguments {
  std::vector<std::string> prefixes;
  std::string output;
  bool force = false;
};

using Datasets = std::vector<std::unique_ptr<IndexedDataset>>;

Datasets open_datasets(const std::vector<std::string>& prefixes) {
  Datasets datasets;
  for (const std::string& prefix : prefixes) {
    datasets.push_back(std::make_unique<IndexedDataset>(prefix));
    const IndexedDataset &first = *datasets.front(), &last = *datasets.back();
    if (last.token_type() != first.token_type()) {
      user_error(
          "{}: has {} tokens, {} has {}; only datasets of one token type can be merged: tokenize them "
          "with the same tokenizer",
          prefix, token_type_name(last.token_type()), first.prefix(), token_type_name(first.token_type()));
    }
  }
  return datasets;
}

/// Whether the datasets have loss masks. UserError unless all have one or none has.
bool have_masks(const std::vector<std::string>& prefixes) {
  for (const std::string& prefix : prefixes) {
    if (has_loss_mask(prefix) == has_loss_mask(prefixes.front())) continue;
    user_error("{}: has {} loss mask, unlike {}; merge instruction datasets only with each other", prefix,
               has_loss_mask(prefix) ? "a" : "no", prefixes.front());
  }
  return has_loss_mask(prefixes.front());
}

/// The record of the result; empty unless all datasets have one.
std::optional<DatasetRecord> merged_record(const Datasets& datasets) {
  std::optional<DatasetRecord> merged;
  std::string first;
  bool all = true;
  for (const auto& dataset : datasets) {
    const std::string& prefix = dataset->prefix();
    const std::optional<DatasetRecord> record = matching_record(*dataset);
    if (!record) {
      all = false;
      continue;
    }
    if (!merged) {
      merged = record;
      first = prefix;
    }
    if (record->tokenizer.hash != merged->tokenizer.hash) {
      user_error(
          "{}: made with the tokenizer {} ({}), but {} with {} ({}); merge datasets of one tokenizer, or "
          "remove {} if both tokenizers are the same",
          prefix, record->tokenizer.name, record->tokenizer.hash, first, merged->tokenizer.name,
          merged->tokenizer.hash, dataset_record_path(prefix));
    }
    if (record->tokenizer.end_of_document != merged->tokenizer.end_of_document)
      merged->tokenizer.end_of_document.reset();
    merged->largest_token = std::max(merged->largest_token, record->largest_token);
  }
  return all ? merged : std::nullopt;
}

void copy_all(const Datasets& datasets, IndexedDatasetWriter& writer) {
  int64_t total = 0, done = 0;
  for (const auto& dataset : datasets) total += dataset->num_tokens() * token_size(dataset->token_type());
  Progress progress(total);
  for (const auto& dataset : datasets) {
    writer.append_dataset(*dataset, [&](int64_t bytes) {
      done += bytes;
      progress.show(done, [&] { return fmt::format("{} documents", writer.num_documents()); });
    });
  }
}

void merge(const MergeArguments& arguments) {
  const std::string &output = arguments.output, mask_output = loss_mask_prefix(output);
  check_prefix("--output", output);
  const Datasets datasets = open_datasets(arguments.prefixes);
  const bool masks = have_masks(arguments.prefixes);
  std::vector<std::string> mask_prefixes, files;
  for (const std::string& prefix : arguments.prefixes) {
    files.insert(files.end(), {prefix + ".bin", prefix + ".idx"});
    if (masks) mask_prefixes.push_back(loss_mask_prefix(prefix));
  }
  for (const std::string& prefix : mask_prefixes)
    files.insert(files.end(), {prefix + ".bin", prefix + ".idx"});
  const Datasets mask_datasets = open_datasets(mask_prefixes);
  check_no_input("--output", output, files);
  if (masks) check_no_input("--output", mask_output, files);
  check_free("--output", output, arguments.force, masks);
  const std::optional<DatasetRecord> record = merged_record(datasets);

  IndexedDatasetWriter writer(output, datasets.front()->token_type());
  std::optional<IndexedDatasetWriter> mask_writer;
  if (masks) mask_writer.emplace(mask_output, TokenType::kU8);
  check_free("--output", output, arguments.force, masks);  // again, now that the prefix is locked
  copy_all(datasets, writer);
  if (record) writer.describe(record->tokenizer, record->largest_token);
  writer.complete();
  if (masks) {
    copy_all(mask_datasets, *mask_writer);
    mask_writer->complete();
    mask_writer->publish();  // first, so that a token file never exists without its mask
  }
  writer.publish();
  print_written(output, writer);
}

}  // namespace

void add_merge_command(CLI::App& app) {
  auto arguments = std::make_shared<MergeArguments>();
  CLI::App* command = app.add_subcommand("merge", "Merge datasets of the same token type");
  command
      ->add_option("prefixes", arguments->prefixes, "Datasets to merge, in this order, without .bin or .idx")
      ->required()
      ->type_name("PREFIX");
  command->add_option("--output", arguments->output, "Prefix of the merged dataset")
      ->required()
      ->type_name("PREFIX");
  command->add_flag("--force", arguments->force, kForceHelp);
  command->footer(
      "Documents keep their order. Loss masks of instruction datasets are merged, too, and the tokenizer "
      "record\n"
      "(PREFIX.meta.json) if all datasets have one. To mix datasets by weight, do not merge them: "
      "data.train\n"
      "accepts a list.\n\n"
      "  te-data merge --output data/web data/web_00 data/web_01 data/web_02");
  command->callback([arguments] { merge(*arguments); });
}

}  // namespace te::data
