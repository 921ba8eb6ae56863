#include "experiment/process.h"

#include <fcntl.h>
#include <spdlog/fmt/fmt.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "core/error.h"
#include "core/file.h"

namespace te::experiment {
namespace {

ExitStatus exit_status_of(int status) {
  if (WIFSIGNALED(status)) return {128 + WTERMSIG(status), WTERMSIG(status)};
  return {WEXITSTATUS(status), 0};
}

// The process and its descendants. Each thread has its own children: Open MPI 5 starts ranks from several threads.
std::vector<pid_t> descendants(pid_t process) {
  std::vector<pid_t> found = {process};
  for (size_t i = 0; i < found.size(); ++i) {
    std::error_code error;  // the process may have ended
    for (std::filesystem::directory_iterator task(fmt::format("/proc/{}/task", found[i]), error), end;
         task != end; task.increment(error)) {
      std::ifstream children(task->path() / "children");
      for (pid_t child = 0; children >> child;) found.push_back(child);
      if (error) break;
    }
  }
  return found;
}

std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> list;
  for (const std::string& word : words) list.push_back(const_cast<char*>(word.c_str()));
  list.push_back(nullptr);
  return list;
}

// Runs between fork and exec, where only async-signal-safe calls are allowed; setenv is not, but the child has one
// thread.
[[noreturn]] void exec_child(const Command& command, const std::vector<char*>& words, int log, int lock,
                             pid_t parent) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(130);  // the parent died before prctl
  ::fcntl(lock, F_SETFD, 0);                // keeps the lock open in the new program
  ::dup2(::open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
  ::dup2(log, STDOUT_FILENO);
  ::dup2(log, STDERR_FILENO);
  for (const auto& [name, value] : command.environment) ::setenv(name.c_str(), value.c_str(), 1);
  for (const int signal : {SIGINT, SIGTERM, SIGPIPE}) ::signal(signal, SIG_DFL);
  ::execvp(words[0], words.data());
  ::dprintf(STDERR_FILENO, "%s: %s\n", words[0], std::strerror(errno));
  ::_exit(127);
}

}  // namespace

std::optional<FolderLock> FolderLock::acquire(const std::filesystem::path& folder) {
  const std::string path = (folder / ".lock").string();
  File file(path, O_RDWR | O_CREAT);
  if (!file.is_open()) user_error("{}: {}; choose a folder that can be written", path, file.error());
  FolderLock lock(file.release());
  if (::flock(lock.descriptor_, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return std::nullopt;
    user_error("{}: {}; choose a folder on a file system that supports locks", path, std::strerror(errno));
  }
  return lock;
}

FolderLock::~FolderLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::string ExitStatus::text() const {
  return signal != 0 ? fmt::format("signal {} ({})", signal, ::strsignal(signal))
                     : fmt::format("exit code {}", exit_code);
}

pid_t start_process(const Command& command, const std::filesystem::path& log, const FolderLock& lock) {
  const File output(log, O_WRONLY | O_CREAT | O_APPEND);
  if (!output.is_open())
    user_error("{}: {}; choose a folder that can be written", log.string(), output.error());
  const std::vector<char*> words = pointers(command.words);
  const pid_t parent = ::getpid(), child = ::fork();
  if (child == 0) exec_child(command, words, output.descriptor(), lock.descriptor(), parent);
  const int failure = errno;
  if (child < 0) user_error("{}: cannot be started: {}", command.words[0], std::strerror(failure));
  ::setpgid(child, child);  // also in the parent, so that the group exists before a signal is sent to it
  return child;
}

void ask_to_stop(pid_t process, const std::string& program) {
  const std::string name = std::filesystem::path(program).filename();
  bool asked = false;
  for (const pid_t member : descendants(process)) {
    std::error_code error;
    const auto running = std::filesystem::read_symlink("/proc/" + std::to_string(member) + "/exe", error);
    if (!error && running.filename() == name) asked = ::kill(member, SIGTERM) == 0 || asked;
  }
  if (!asked) ::kill(process, SIGTERM);
}

std::optional<ExitStatus> poll_process(pid_t process) {
  int status = 0;
  const pid_t found = ::waitpid(process, &status, WNOHANG);
  if (found == 0 || (found < 0 && errno == EINTR)) return std::nullopt;
  TE_CHECK(found == process, "waitpid({}): {}", process, std::strerror(errno));
  return exit_status_of(status);
}

int run_and_wait(const std::vector<std::string>& words, bool quiet) {
  const std::vector<char*> list = pointers(words);
  const pid_t child = ::fork();
  if (child == 0) {
    if (quiet) {
      const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
      ::dup2(nowhere, STDOUT_FILENO);
      ::dup2(nowhere, STDERR_FILENO);
    }
    ::execvp(list[0], list.data());
    ::_exit(127);
  }
  int status = 0;
  if (child < 0) return 127;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return exit_status_of(status).exit_code;
}

std::string shell_text(const Command& command) {
  const auto quoted = [](const std::string& word) {
    if (!word.empty() && word.find_first_of(" \t\n'\"\\$&|;<>()*?[]#~`!{}") == std::string::npos) return word;
    std::string text = "'";
    for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return text + "'";
  };
  std::string text;
  for (const auto& [name, value] : command.environment) text += name + "=" + quoted(value) + " ";
  for (const std::string& word : command.words) text += quoted(word) + " ";
  text.pop_back();
  return text;
}

}  // namespace te::experiment
