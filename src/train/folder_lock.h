// Locks a folder for one run at a time. FOLDER/run.lock is locked and names the process that writes there (host,
// process ID, start time).
#pragma once

#include <filesystem>
#include <string>

namespace te::train {

/// Holds the lock (flock) during its lifetime and removes the file at the end. The kernel releases the lock when the
/// process ends in any way, so the file of a killed run is recognized and replaced. On a file system without locks, the
/// file counts while the process it names runs; a file of another host is taken over with a warning.
class FolderLock {
 public:
  /// Waits up to `patience_seconds` for a run that is just ending. UserError, prefixed with `key`, when another process
  /// holds the lock or the file cannot be written.
  FolderLock(const std::string& key, const std::filesystem::path& folder, double patience_seconds = 2);
  ~FolderLock();
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&&) = delete;

  /// Call before writing to the folder after some time: if the file was removed, perhaps with the folder, locks it
  /// again with a warning. UserError when another process has done so.
  void check();

  static constexpr const char* kName = "run.lock";

 private:
  std::string key_;
  std::filesystem::path path_;
  int file_ = -1;
};

}  // namespace te::train
