// Code that the subcommands of te-data share: outputs with a validation split, and messages.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/progress.h"
#include "data/indexed_dataset.h"
#include "text/readers/input_files.h"
#include "text/tokenizer.h"

namespace te::data {

using apps::check_interrupted;
using apps::Progress;

// Checks of an output prefix; `option` is the option that names it.

/// UserError for PREFIX.bin and PREFIX.idx.
void check_prefix(const std::string& option, const std::string& prefix);
/// UserError if writing the dataset would replace one of the files.
void check_no_input(const std::string& option, const std::string& prefix,
                    const std::vector<std::string>& files);
/// UserError if a dataset with this prefix exists, unless `force`. `masked`: the new dataset has a loss mask, which is
/// checked likewise. Without one, an existing mask is refused, because it would not match.
void check_free(const std::string& option, const std::string& prefix, bool force, bool masked);

/// --output, --valid-output, --valid-fraction and --force.
struct OutputOptions {
  std::string output, valid_output;
  double valid_fraction = 0.0;
  bool force = false;
  bool masked = false;  ///< the command writes loss masks, too

  void add_to(CLI::App* command);
  void check() const;
  /// check_free() of the prefixes. Writers lock their prefix: call it again when they exist, because another te-data
  /// may have written the dataset since the first check.
  void check_free() const;
  void check_no_input(const std::vector<std::string>& files) const;
  bool has_valid() const { return !valid_output.empty(); }
  /// Every 1/fraction-th document: evenly spaced, and dependent on the index only.
  bool is_valid_document(int64_t index) const;
  /// UserError if one of the two sets would be empty. `what`: the name of the documents in the message.
  void check_counts(int64_t train, int64_t valid, const char* what) const;
};

/// "PREFIX: 3 documents, 5 tokens, 10 bytes as u16".
void print_written(const std::string& prefix, const IndexedDatasetWriter& writer);

/// Writes documents to the training or the validation set.
class SplitWriter {
 public:
  SplitWriter(const OutputOptions& outputs, TokenType type, const std::optional<TokenizerRecord>& tokenizer);
  /// The writer of the current document.
  IndexedDatasetWriter& writer() { return outputs_.is_valid_document(documents_) ? *valid_ : train_; }
  void end_document();
  int64_t documents() const { return documents_; }
  int64_t tokens() const { return train_.num_tokens() + (valid_ ? valid_->num_tokens() : 0); }
  /// UserError if one of the two sets is empty.
  void finish();

 private:
  const OutputOptions& outputs_;
  IndexedDatasetWriter train_;
  std::optional<IndexedDatasetWriter> valid_;
  int64_t documents_ = 0;
};

/// The tokenizer's entry in a dataset's record.
TokenizerRecord record_of(const text::Tokenizer& tokenizer);

/// Lines that --skip-bad-lines skips: all are counted, the first few are shown.
class BadLines {
 public:
  void add(const std::string& message);
  int64_t count() const { return count_; }
  /// Prints "2 bad lines skipped" if there are any.
  void print_count() const;

 private:
  int64_t count_ = 0;
};

/// Warnings about formats that were guessed from a file's content; the first few are shown.
class FormatGuesses {
 public:
  void add(const std::string& message);

 private:
  int64_t count_ = 0;
};

/// "1 file", "2 files".
std::string file_count(size_t files);
/// "2 binary files, 1 links to folders or missing files": what the listing of folders skipped; empty if nothing.
std::string skipped_count(const text::InputFiles& files);

/// Help texts of options that several subcommands have.
inline constexpr const char* kInputHelp =
    "A file, a folder (all text files below it), or - for standard input; may be repeated. "
    ".gz, .zst and .xz are decompressed";
inline constexpr const char* kForceHelp = "Replace an existing dataset with this prefix";
inline constexpr const char* kTokenizerHelp =
    "bytes (one token per byte, vocab_size 257), or a tokenizer file or folder "
    "(docs/reference/tokenizers.md)";

}  // namespace te::data
