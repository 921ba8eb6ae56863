// A child process without a shell: its output goes to a file, it is in a process group of its own (a Ctrl-C at the
// terminal reaches te-experiment alone, which passes it on once), and it is told to stop when te-experiment dies.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace te::experiment {

/// Keeps a second process out of a run's folder: an exclusive lock of FOLDER/.lock that lives as long as anybody has
/// the file open, which the run's process does.
class FolderLock {
 public:
  /// Empty when another process holds it. UserError when the file cannot be made.
  static std::optional<FolderLock> acquire(const std::filesystem::path& folder);
  FolderLock(FolderLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  FolderLock& operator=(FolderLock&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  ~FolderLock();
  int descriptor() const { return descriptor_; }

 private:
  explicit FolderLock(int descriptor) : descriptor_(descriptor) {}
  int descriptor_ = -1;
};

struct Command {
  std::vector<std::string> words;  ///< the program is looked up on the PATH unless it has a slash
  std::vector<std::pair<std::string, std::string>> environment;  ///< on top of this process's own
};

/// How a process ended: its exit code, or the signal.
struct ExitStatus {
  int exit_code = 0;  ///< 128 + signal when a signal ended it, as a shell has it
  int signal = 0;
  std::string text() const;  ///< "exit code 2", "signal 9 (Killed)"
};

/// Starts it; output is appended to `log`. The lock goes with the process.
pid_t start_process(const Command& command, const std::filesystem::path& log, const FolderLock& lock);
/// Tells a run to save and stop: SIGTERM for the processes of `program` at or below `process`, or for `process` itself
/// where there are none. Not for mpirun: it would kill its ranks a second later.
void ask_to_stop(pid_t process, const std::string& program);
/// Without waiting; empty while it runs.
std::optional<ExitStatus> poll_process(pid_t process);
/// Runs a command with this process's own output and waits; 127 when there is no such program. Its output can be
/// dropped.
int run_and_wait(const std::vector<std::string>& words, bool quiet);

/// As a user would type it.
std::string shell_text(const Command& command);

}  // namespace te::experiment
