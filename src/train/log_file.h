// A log of one record per line: loss.csv, metrics.jsonl. What a run has logged stays, whatever happens to the disk or
// to the run: lines are only ever appended, a resumed run cuts off what it will write again, and where the disk is full
// lines wait in memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace te::train {

/// The step of a line without its newline; 0 for a header, -1 for what is no line of this log.
using StepOf = int64_t (*)(std::string_view line);

/// The step of the log's last whole record; 0 when it has none or does not exist. Reads its end only.
int64_t last_logged_step(const std::filesystem::path& path, StepOf step_of);

/// Ends the log behind its last whole record of a step up to `last_step`, at one instant, by truncating it; returns how
/// many lines went. Lines of a log are in the order of their steps, so only those behind that record are read.
/// UserError when the file cannot be changed.
int64_t truncate_log(const std::filesystem::path& path, int64_t last_step, StepOf step_of);

/// Moves a log to the first free of PATH.1, PATH.2, ... and returns the new name.
std::filesystem::path rotate_log(const std::filesystem::path& path);

class LogFile {
 public:
  /// Opens the log to append to it, making it if it is not there. One without the header gets it (written aside, and
  /// renamed). UserError when it cannot be opened.
  LogFile(const std::filesystem::path& path, std::string_view header);
  /// Tries once more to write what is still in memory; what cannot be written is lost, with a warning.
  ~LogFile();
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;

  /// Appends lines. Where the disk takes no more they stay in memory (the newest kMaxPending bytes), are tried again
  /// with the next ones, and a warning says so once.
  void append(std::string_view lines);

  static constexpr size_t kMaxPending = 16 << 20;

 private:
  bool write_pending();
  void drop_oldest();

  std::filesystem::path path_;
  int file_ = -1;
  std::string pending_;   ///< begins within a line when a part of that has been written
  bool complete_ = true;  ///< the file ends with a whole line
  int64_t failing_ = 0;   ///< calls in a row after which lines were left in memory
  int64_t dropped_ = 0;   ///< lines
};

}  // namespace te::train
