#include "data/merge.h"

#include <algorithm>
#include <filesystem>
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

Datasets open_all(const std::vector<std::string>& prefixes, const std::string& output) {
  Datasets datasets;
  for (const std::string& prefix : prefixes) {
    std::error_code error;
    if (std::filesystem::equivalent(prefix + ".bin", output + ".bin", error)) {
      user_error("--output: {} is one of the datasets to merge; give the result its own prefix", output);
    }
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
  const Datasets datasets = open_all(arguments.prefixes, arguments.output);
  const bool masks = have_masks(arguments.prefixes);
  if (!masks) check_no_mask(arguments.output);
  check_free("--output", arguments.output, arguments.force);
  if (masks) check_free("--output", loss_mask_prefix(arguments.output), arguments.force);
  const std::optional<DatasetRecord> record = merged_record(datasets);
  IndexedDatasetWriter writer(arguments.output, datasets.front()->token_type());
  copy_all(datasets, writer);
  if (masks) {
    std::vector<std::string> mask_prefixes;
    for (const std::string& prefix : arguments.prefixes) mask_prefixes.push_back(loss_mask_prefix(prefix));
    const std::string output = loss_mask_prefix(arguments.output);
    IndexedDatasetWriter mask_writer(output, TokenType::kU8);
    copy_all(open_all(mask_prefixes, output), mask_writer);
    mask_writer.finish();
  }
  if (record) writer.describe(record->tokenizer, record->largest_token);
  writer.finish();
  print_written(arguments.output, writer);
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
