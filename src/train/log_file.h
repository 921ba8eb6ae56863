// A log with one record per line (loss.csv, metrics.jsonl). Records survive crashes and full disks: lines are only
// appended, a resumed run truncates the lines that it repeats, and lines wait in memory while the disk is full.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "train/record_file.h"

namespace te::train {

/// Returns the step of a line without its newline: 0 for a header, -1 if it is not a line of this log.
using StepOf = int64_t (*)(std::string_view line);

/// The step of the last complete record; 0 if there is none. Reads only the end of the file.
int64_t last_logged_step(const std::filesystem::path& path, StepOf step_of);

/// Truncates the log after the last complete record of a step up to `last_step`, atomically; returns the number of
/// lines removed. Lines are in the order of their steps, so only those after that record are read. UserError when the
/// file cannot be changed.
int64_t truncate_log(const std::filesystem::path& path, int64_t last_step, StepOf step_of);

/// Renames a log to the first free name of PATH.1, PATH.2, ... and returns it.
std::filesystem::path rotate_log(const std::filesystem::path& path);

class LogFile {
 public:
  /// Opens the log for appending, creating it if needed. A log without the header gets one, through a temporary file
  /// and a rename. UserError when it cannot be opened.
  LogFile(const std::filesystem::path& path, std::string_view header);
  /// Appends lines; each is a record of record_file.h.
  void append(std::string_view lines);
  /// After truncate_log() with the same arguments: forgets lines of later steps that wait for disk space.
  void truncated(int64_t last_step, StepOf step_of);

 private:
  RecordFile file_;
};

}  // namespace te::train
