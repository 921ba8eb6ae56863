#include "data/command.h"

#include <cmath>
#include <filesystem>
#include <utility>

#include "core/dataset_prefix.h"
#include "core/error.h"
#include "data/loss_mask.h"
#include "text/tokenizer_hash.h"

namespace te::data {

namespace {

namespace fs = std::filesystem;

void check_absent(const std::string& option, const std::string& prefix) {
  for (const char* suffix : {".idx", ".bin"}) {
    std::error_code error;
    if (fs::symlink_status(prefix + suffix, error).type() == fs::file_type::not_found) continue;
    user_error("{}: {}{} exists; give another prefix, or --force to replace the dataset", option, prefix,
               suffix);
  }
}

/// A path for comparisons: `a`, `./a` and `b/../a` are one prefix. The prefix itself is no file, so that only links in
/// its folder are followed.
fs::path canonical_prefix(const std::string& prefix) {
  const fs::path path = fs::absolute(prefix);
  return fs::weakly_canonical(path.parent_path()) / path.filename();
}

bool is_same_prefix(const std::string& a, const std::string& b) {
  return canonical_prefix(a) == canonical_prefix(b);
}

}  // namespace

void check_prefix(const std::string& option, const std::string& prefix) {
  if (const std::string_view named = prefix_of_dataset_file(prefix); !named.empty())
    user_error("{}: `{}` names a file; give the prefix `{}`", option, prefix, named);
}

void check_no_input(const std::string& option, const std::string& prefix,
                    const std::vector<std::string>& files) {
  for (const std::string& written : {prefix + ".bin", prefix + ".idx", dataset_record_path(prefix)}) {
    std::error_code error;
    if (!fs::exists(written, error)) continue;
    for (const std::string& file : files) {
      if (fs::equivalent(written, file, error))
        user_error("{}: {} is one of the inputs; give the result its own prefix", option, written);
    }
  }
}

void check_free(const std::string& option, const std::string& prefix, bool force, bool masked) {
  if (!masked && has_loss_mask(prefix)) {
    user_error(
        "{}.idx: loss mask of an existing dataset with this prefix; choose another prefix, or remove both",
        loss_mask_prefix(prefix));
  }
  if (force) return;
  check_absent(option, prefix);
  if (masked) check_absent(option, loss_mask_prefix(prefix));
}

void OutputOptions::add_to(CLI::App* command) {
  command->add_option("--output", output, "Prefix of the dataset: writes PREFIX.bin and PREFIX.idx")
      ->required()
      ->type_name("PREFIX");
  command->add_option(
      "--valid-fraction", valid_fraction,
      "Put this fraction of the documents, evenly spaced, into the dataset of --valid-output");
  command->add_option("--valid-output", valid_output, "Prefix of the validation dataset")
      ->type_name("PREFIX");
  command->add_flag("--force", force, kForceHelp);
}

void OutputOptions::check() const {
  const bool split = valid_fraction != 0.0;
  if (split && !(valid_fraction > 0.0 && valid_fraction < 1.0)) {
    user_error("--valid-fraction: {} must be above 0 and below 1", valid_fraction);
  }
  if (split == valid_output.empty()) user_error("--valid-fraction and --valid-output: give both or neither");
  check_prefix("--output", output);
  check_prefix("--valid-output", valid_output);
  if (split && is_same_prefix(output, valid_output))
    user_error("--valid-output: is the same as --output; give the validation set its own prefix");
  if (split && (is_same_prefix(output, loss_mask_prefix(valid_output)) ||
                is_same_prefix(loss_mask_prefix(output), valid_output))) {
    user_error(
        "--output and --valid-output: one names the loss mask of the other, PREFIX_mask; give the validation "
        "set another prefix");
  }
  check_free();
}

void OutputOptions::check_free() const {
  data::check_free("--output", output, force, masked);
  if (has_valid()) data::check_free("--valid-output", valid_output, force, masked);
}

void OutputOptions::check_no_input(const std::vector<std::string>& files) const {
  for (const auto& [option, prefix] : {std::pair("--output", output), {"--valid-output", valid_output}}) {
    if (prefix.empty()) continue;
    data::check_no_input(option, prefix, files);
    if (masked) data::check_no_input(option, loss_mask_prefix(prefix), files);
  }
}

bool OutputOptions::is_valid_document(int64_t index) const {
  if (!has_valid()) return false;
  const auto until = [&](int64_t count) {
    return std::floor(static_cast<double>(count) * valid_fraction + 0.5);
  };
  return until(index + 1) > until(index);
}

void OutputOptions::check_counts(int64_t train, int64_t valid, const char* what) const {
  if (!has_valid() || (train > 0 && valid > 0)) return;
  user_error(
      "--valid-fraction: {} of {} {} leaves the {} set empty; split the input into more {}, or change "
      "the fraction",
      valid_fraction, train + valid, what, valid == 0 ? "validation" : "training", what);
}

SplitWriter::SplitWriter(const OutputOptions& outputs, TokenType type,
                         const std::optional<TokenizerRecord>& tokenizer)
    : outputs_(outputs), train_(outputs.output, type) {
  if (outputs.has_valid()) valid_.emplace(outputs.valid_output, type);
  outputs.check_free();
  if (!tokenizer) return;
  train_.describe(*tokenizer);
  if (valid_) valid_->describe(*tokenizer);
}

void SplitWriter::end_document() {
  writer().end_document();
  ++documents_;
}

void SplitWriter::finish() {
  outputs_.check_counts(train_.num_documents(), valid_ ? valid_->num_documents() : 0, "documents");
  if (valid_) valid_->complete();
  train_.complete();
  if (valid_) valid_->publish();
  train_.publish();
  print_written(outputs_.output, train_);
  if (valid_) print_written(outputs_.valid_output, *valid_);
}

TokenizerRecord record_of(const text::Tokenizer& tokenizer) {
  return {.name = tokenizer.name(),
          .hash = text::tokenizer_hash(tokenizer),
          .vocab_size = tokenizer.vocab_size(),
          .end_of_document = tokenizer.end_of_document()};
}

void BadLines::add(const std::string& message) {
  constexpr int64_t kShown = 5;
  if (++count_ <= kShown) fmt::print(stderr, "te-data: skipped: {}\n", message);
  if (count_ == kShown) fmt::print(stderr, "te-data: skipped: further bad lines are only counted\n");
}

void BadLines::print_count() const {
  if (count_ > 0) fmt::print("{} bad lines skipped\n", count_);
}

void FormatGuesses::add(const std::string& message) {
  constexpr int64_t kShown = 5;
  if (++count_ <= kShown) fmt::print(stderr, "te-data: warning: {}\n", message);
  if (count_ == kShown) fmt::print(stderr, "te-data: warning: further such files are not listed\n");
}

std::string file_count(size_t files) {
  return fmt::format("{} file{}", files, files == 1 ? "" : "s");
}

std::string skipped_count(const text::InputFiles& files) {
  std::string text;
  if (files.skipped > 0) text = fmt::format("{} binary files", files.skipped);
  if (files.skipped_links > 0)
    text +=
        fmt::format("{}{} links to folders or missing files", text.empty() ? "" : ", ", files.skipped_links);
  return text;
}

void print_written(const std::string& prefix, const IndexedDatasetWriter& writer) {
  fmt::print("{}: {} documents, {} tokens, {} bytes as {}\n", prefix, writer.num_documents(),
             writer.num_tokens(), writer.num_tokens() * token_size(writer.token_type()),
             token_type_name(writer.token_type()));
}

}  // namespace te::data
