// What the subcommands of te-data share: outputs with a validation split, and texts.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "common/progress.h"
#include "data/indexed_dataset.h"
#include "text/tokenizer.h"

namespace te::data {

using apps::check_interrupted;
using apps::Progress;

/// UserError when a dataset has this prefix, unless --force was given. `option` has named it.
void check_free(const std::string& option, const std::string& prefix, bool force);
/// UserError when there is a loss mask of this prefix: it would not belong to what takes the dataset's place.
void check_no_mask(const std::string& prefix);

/// --output, --valid-output, --valid-fraction and --force.
struct OutputOptions {
  std::string output, valid_output;
  double valid_fraction = 0.0;
  bool force = false;

  void add_to(CLI::App* command);
  void check() const;
  bool has_valid() const { return !valid_output.empty(); }
  /// Every 1/fraction-th document: evenly spread, and the same whatever else changes.
  bool is_valid_document(int64_t index) const;
  /// UserError when one of the two sets would be empty; `what` the documents are.
  void check_counts(int64_t train, int64_t valid, const char* what) const;
};

/// "PREFIX: 3 documents, 5 tokens, 10 bytes as u16".
void print_written(const std::string& prefix, const data::IndexedDatasetWriter& writer);

/// What a dataset's record says of the tokenizer that has made it.
TokenizerRecord record_of(const text::Tokenizer& tokenizer);

/// Lines that are left out with --skip-bad-lines: the first few are shown, all are counted.
class BadLines {
 public:
  void add(const std::string& message);
  int64_t count() const { return count_; }
  /// "2 bad lines left out", if there are any.
  void print_count() const;

 private:
  int64_t count_ = 0;
};

/// What the formats of files were taken for: the first few are shown.
class FormatGuesses {
 public:
  void add(const std::string& message);

 private:
  int64_t count_ = 0;
};

/// "1 file", "2 files".
std::string file_count(size_t files);

/// Help texts that mean the same everywhere.
inline constexpr const char* kInputHelp =
    "A file, a folder (all text files below it), or - for standard input; may be given several times. "
    ".gz, .zst and .xz are decompressed on the way";
inline constexpr const char* kForceHelp = "Replace a dataset that has this prefix";
inline constexpr const char* kTokenizerHelp =
    "bytes (a token per byte, vocab_size 257), or a tokenizer's file or folder; see "
    "docs/reference/tokenizers.md";

}  // namespace te::data
