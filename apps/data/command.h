// What the subcommands of te-data share: progress, interruption, and outputs with a validation split.
#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <string>

#include "data/indexed_dataset.h"

namespace te::data {

/// Ctrl-C and SIGTERM make check_interrupted() throw Interrupted, so that destructors remove unfinished files.
void catch_interrupts();
struct Interrupted {};
bool interrupted();
void check_interrupted();

/// One line on stderr, rewritten twice a second on a terminal, a new one every ten seconds elsewhere.
class Progress {
 public:
  /// `total_bytes`: what show() counts up to, for bar and remaining time; not positive when unknown.
  explicit Progress(int64_t total_bytes = 0) : total_(total_bytes) {}
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `detail` says what came out of the bytes; it is only called when a line is due. Also checks for
  /// interruption.
  template <class Detail>
  void show(int64_t bytes, Detail detail) {
    check_interrupted();
    if (due()) print(bytes, detail());
  }
  double seconds() const;

 private:
  bool due();
  void print(int64_t bytes, const std::string& detail);

  int64_t total_;
  bool terminal_ = is_terminal();
  bool shown_ = false;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now(), last_ = start_;
  static bool is_terminal();
};

/// --output, --valid-output and --valid-fraction.
struct OutputOptions {
  std::string output, valid_output;
  double valid_fraction = 0.0;

  void add_to(CLI::App* command);
  void check() const;
  bool has_valid() const { return !valid_output.empty(); }
  /// Every 1/fraction-th document: evenly spread, and the same whatever else changes.
  bool is_valid_document(int64_t index) const;
  /// UserError when one of the two sets would be empty; `what` the documents are.
  void check_counts(int64_t train, int64_t valid, const char* what) const;
};

/// "PREFIX: 3 documents, 5 tokens, 10 bytes as u16".
void print_written(const std::string& prefix, const IndexedDatasetWriter& writer);

/// Help texts that mean the same everywhere.
inline constexpr const char* kInputHelp =
    "A file, a folder (all text files below it), or - for standard input; may be given several times. "
    ".gz, .zst and .xz are decompressed on the way";
inline constexpr const char* kTokenizerHelp =
    "bytes (a token per byte, vocab_size 257), or a tokenizer's file or folder; see docs/data.md";

}  // namespace te::data
