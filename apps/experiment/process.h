// Child processes without a shell. Output goes to a file. Each child has its own process group, so that Ctrl-C reaches
// only te-experiment, which forwards it once. Children receive SIGTERM when te-experiment dies.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace te::experiment {

/// Keeps a second process out of a run's folder: an exclusive lock on FOLDER/.lock that is held as long as any process
/// has the file open. The run's process inherits it.
class FolderLock {
 public:
  /// Empty if another process holds the lock. UserError if the file cannot be created.
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
  std::vector<std::string> words;  ///< the program is searched on the PATH unless it contains a slash
  std::vector<std::pair<std::string, std::string>>
      environment;  ///< in addition to this process's environment
};

/// How a process ended: its exit code, or the signal.
struct ExitStatus {
  int exit_code = 0;  ///< 128 + signal if a signal ended it, as in a shell
  int signal = 0;
  std::string text() const;  ///< "exit code 2", "signal 9 (Killed)"
};

/// Starts a command; its output is appended to `log`. The process inherits the lock.
pid_t start_process(const Command& command, const std::filesystem::path& log, const FolderLock& lock);
/// Asks a run to save and stop: sends SIGTERM to the processes of `program` among `process` and its descendants, or to
/// `process` itself if there are none. mpirun must not receive it: it would kill its ranks a second later.
void ask_to_stop(pid_t process, const std::string& program);
/// Does not wait; empty while the process runs.
std::optional<ExitStatus> poll_process(pid_t process);
/// Runs a command and waits; returns its exit code, 127 if the program does not exist. Its output goes to this
/// process's output, or nowhere if `quiet`.
int run_and_wait(const std::vector<std::string>& words, bool quiet);

/// The command as text that can be pasted into a shell.
std::string shell_text(const Command& command);

}  // namespace te::experiment
