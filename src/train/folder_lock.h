// One run at a time in a folder: FOLDER/run.lock names the process that writes there (host, process id, start), and is
// locked by it.
#pragma once

#include <filesystem>
#include <string>

namespace te::train {

/// Holds the lock while it lives; removes the file at its end. The lock is the file system's (flock), which lets go
/// when the process ends, however it ends: a file that a killed run has left is recognised and replaced. A file system
/// without locks is asked less: there the file counts while the process that it names runs, and one of another host is
/// taken over with a warning.
class FolderLock {
 public:
  /// Waits up to `patience_seconds` for a run that is just ending. UserError, with `key` before it, when another
  /// process holds the lock or the file cannot be written.
  FolderLock(const std::string& key, const std::filesystem::path& folder, double patience_seconds = 2);
  ~FolderLock();
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&&) = delete;

  static constexpr const char* kName = "run.lock";

 private:
  std::filesystem::path path_;
  int file_ = -1;
};

}  // namespace te::train
