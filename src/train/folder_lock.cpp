#include "train/folder_lock.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>

#include "core/clock.h"
#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "core/strings.h"

namespace te::train {
namespace {

namespace fs = std::filesystem;

/// Content of the file: "host node12 pid 4711 since 2026-05-01 12:00:00".
struct Holder {
  std::string host;
  long pid = 0;
  std::string since;

  std::string text() const { return fmt::format("host {} pid {} since {}", host, pid, since); }
};

Holder own_holder() {
  return {host_name(), ::getpid(), fmt::format("{:%F %T}", local_time())};
}

std::optional<Holder> read_holder(int file) {
  std::string text(512, '\0');
  const ssize_t got = ::pread(file, text.data(), text.size(), 0);
  if (got <= 0) return std::nullopt;
  std::istringstream in(text.substr(0, static_cast<size_t>(got)));
  Holder holder;
  std::string host, pid, since, day, time;
  if (!(in >> host >> holder.host >> pid >> holder.pid >> since >> day >> time)) return std::nullopt;
  holder.since = day + " " + time;
  return holder;
}

bool runs_here(const Holder& holder) {
  return holder.host == host_name() && (::kill(static_cast<pid_t>(holder.pid), 0) == 0 || errno == EPERM);
}

enum class Attempt : uint8_t { taken, held, replaced };

/// Tries once to lock the open file.
Attempt try_lock(int file, const fs::path& path) {
  if (::flock(file, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return Attempt::held;
    const std::optional<Holder> holder = read_holder(file);  // no locks on this file system
    if (holder && holder->pid != ::getpid() && runs_here(*holder)) return Attempt::held;
    if (holder && holder->host != host_name()) {
      log_warning("{}: the file system has no locks: cannot check whether {} still runs; continuing",
                  path.string(), holder->text());
    }
    return Attempt::taken;
  }
  // The previous holder may have removed the file after it was opened here.
  return is_file_at(file, path) ? Attempt::taken : Attempt::replaced;
}

}  // namespace

FolderLock::FolderLock(const std::string& key, const fs::path& folder, double patience_seconds)
    : key_(key), path_(folder / kName) {
  using Clock = std::chrono::steady_clock;
  const auto patience = Clock::now() + std::chrono::duration<double>(patience_seconds);
  for (;;) {
    File file(path_, O_RDWR | O_CREAT);
    if (!file.is_open())
      user_error("{}: {}: {}; choose a folder that can be written", key, path_.string(), file.error());
    file_ = file.release();
    const Attempt attempt = try_lock(file_, path_);
    if (attempt == Attempt::taken) break;
    const std::optional<Holder> holder = read_holder(file_);
    ::close(std::exchange(file_, -1));
    if (attempt == Attempt::held && Clock::now() > patience) {
      user_error("{}: {}: another run writes there ({}); wait for it, stop it, or choose another folder", key,
                 folder.string(), holder ? holder->text() : "it is starting");
    }
    if (attempt == Attempt::held) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  if (const std::optional<Holder> holder = read_holder(file_))
    log_info("{}: left by a run that has ended ({})", path_.string(), holder->text());
  const std::string text = own_holder().text() + "\n";
  // Start even if the disk is full: the lock works without its text.
  if (::ftruncate(file_, 0) != 0 || ::pwrite(file_, text.data(), text.size(), 0) < 0)
    log_warning("{}: cannot be written: {}", path_.string(), std::strerror(errno));
}

FolderLock::FolderLock(FolderLock&& other) noexcept
    : key_(std::move(other.key_)), path_(std::move(other.path_)), file_(std::exchange(other.file_, -1)) {}

void FolderLock::check() {
  if (is_file_at(file_, path_)) return;
  const fs::path folder = path_.parent_path();
  std::error_code ignored;  // reported when the file cannot be created
  fs::create_directories(folder, ignored);
  FolderLock again(key_, folder);
  std::swap(file_, again.file_);
  log_warning("{}: was removed during the run; other files of the run may be missing, too", path_.string());
}

FolderLock::~FolderLock() {
  if (file_ < 0) return;
  // Before unlocking, so that no process locks a file about to be removed. Another run's file stays.
  if (is_file_at(file_, path_)) ::unlink(path_.c_str());
  ::close(file_);
}

}  // namespace te::train
