#include "kernels/gemm/gemm_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>

#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "core/strings.h"

namespace te::kernels {
namespace {

namespace fs = std::filesystem;

constexpr uintmax_t kMaxFileBytes = 16 << 20;
constexpr auto kLockPause = std::chrono::milliseconds(10);
/// A selection that is not written is repeated by a later process.
constexpr auto kWriteLock = std::chrono::seconds(1);
/// Longer than any search and than the clock differences between hosts.
constexpr auto kAbandonedAge = std::chrono::minutes(10);
/// Time limit for waiting for other processes' searches. One takes a few seconds at most, and each rank of a host may
/// run one.
constexpr auto kSearchLock = std::chrono::seconds(120);

uint64_t fnv1a(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return hash;
}

/// Keeps letters, digits and '-' of a name, for use in a file name.
std::string file_name_of(const std::string& name) {
  std::string result;
  for (char c : name) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (plain) {
      result += c;
    } else if (!result.empty() && result.back() != '-') {
      result += '-';
    }
  }
  return result;
}

std::string hexadecimal(const std::vector<uint8_t>& bytes) {
  std::string text;
  for (uint8_t byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

std::optional<std::vector<uint8_t>> bytes_of(std::string_view text) {
  if (text.size() % 2 != 0) return std::nullopt;
  std::vector<uint8_t> bytes(text.size() / 2);
  for (size_t i = 0; i < bytes.size(); ++i) {
    const char* from = text.data() + 2 * i;
    const auto [end, error] = std::from_chars(from, from + 2, bytes[i], 16);
    if (error != std::errc() || end != from + 2) return std::nullopt;
  }
  return bytes;
}

std::string line_of(const std::string& key, const GemmCache::Entry& entry) {
  return fmt::format("{}\t{}\t{}\n", key, entry.effort, hexadecimal(entry.algorithm));
}

/// Removes the text up to the separator from the front and returns it; nothing if there is no separator.
std::optional<std::string_view> split_front(std::string_view& text, char separator) {
  const size_t end = text.find(separator);
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view front = text.substr(0, end);
  text.remove_prefix(end + 1);
  return front;
}

std::optional<std::pair<std::string, GemmCache::Entry>> entry_of(std::string_view line) {
  const auto key = split_front(line, '\t'), effort = split_front(line, '\t');
  const auto algorithm = bytes_of(line);
  if (!key || !effort || !algorithm) return std::nullopt;
  GemmCache::Entry entry{0, *algorithm};
  const char* end = effort->data() + effort->size();
  const auto parsed = std::from_chars(effort->data(), end, entry.effort);
  if (parsed.ec != std::errc() || parsed.ptr != end) return std::nullopt;
  return std::pair{std::string(*key), entry};
}

/// The entries of a file, or nothing if any part of the file is invalid.
std::optional<std::map<std::string, GemmCache::Entry>> parse(std::string_view text, std::string_view head) {
  const size_t last = text.rfind("checksum ");
  if (last == std::string_view::npos) return std::nullopt;
  if (text.substr(last) != fmt::format("checksum {:016x}\n", fnv1a(text.substr(0, last))))
    return std::nullopt;
  text = text.substr(0, last);
  if (text.substr(0, head.size()) != head) return std::nullopt;
  text.remove_prefix(head.size());
  std::map<std::string, GemmCache::Entry> entries;
  while (!text.empty()) {
    const auto line = split_front(text, '\n');
    auto entry = line ? entry_of(*line) : std::nullopt;
    if (!entry) return std::nullopt;
    entries.insert(std::move(*entry));
  }
  return entries;
}

/// An exclusive lock on a file for the lifetime of the object. The constructor waits for at most `patience`. If the
/// file system has no locks (NFS without its lock service, Lustre without its flock option), the lock is a second file,
/// PATH.held, whose creation is atomic.
class FileLock {
 public:
  FileLock(const std::string& path, std::chrono::milliseconds patience)
      : file_(path, O_CREAT | O_RDWR, FileKind::regular, 0644), name_(path + ".held") {
    const auto end = std::chrono::steady_clock::now() + patience;
    while (attempt() == Attempt::busy && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(kLockPause);
  }
  ~FileLock() {
    if (!owner_.empty() && te::read_file(name_).text == owner_) ::unlink(name_.c_str());
  }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  bool opened() const { return file_.is_open(); }
  bool held() const { return held_; }
  const std::string& error() const { return file_.error(); }

 private:
  enum class Attempt : uint8_t { over, busy };

  Attempt attempt() {
    if (!file_.is_open()) return Attempt::over;
    held_ = ::flock(file_.descriptor(), LOCK_EX | LOCK_NB) == 0;
    if (!held_ && errno == EWOULDBLOCK) return Attempt::busy;
    return held_ ? Attempt::over : attempt_by_name();
  }

  Attempt attempt_by_name() {
    const int file = ::open(name_.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
    held_ = file >= 0;
    if (!held_) {
      if (is_abandoned()) remove_abandoned();
      return Attempt::busy;
    }
    owner_ = fmt::format("{} {} {}\n", host_name(), ::getpid(),
                         std::chrono::steady_clock::now().time_since_epoch().count());
    if (::write(file, owner_.data(), owner_.size()) < 0)
      owner_.clear();  // on a full disk, others later remove it as abandoned
    ::close(file);
    return Attempt::over;
  }

  static bool is_old(const std::string& file) {
    std::error_code error;
    const auto made = fs::last_write_time(file, error);
    return !error && fs::file_time_type::clock::now() - made > kAbandonedAge;
  }

  // One process at a time, because another may have removed the file and created its own after it was checked.
  void remove_abandoned() const {
    const std::string guard = name_ + ".removal";
    const int file = ::open(guard.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
    if (file < 0 && !is_old(guard)) return;
    if (file >= 0 && is_abandoned()) ::unlink(name_.c_str());
    if (file >= 0) ::close(file);
    ::unlink(guard.c_str());
  }

  /// Whether the lock's process has ended, or the lock is older than any search takes.
  bool is_abandoned() const {
    if (is_old(name_)) return true;
    std::istringstream text(te::read_file(name_).text);
    std::string host;
    pid_t process = 0;
    return text >> host >> process && host == host_name() && ::kill(process, 0) != 0 && errno == ESRCH;
  }

  File file_;
  std::string name_, owner_;  ///< owner_: what this object wrote to PATH.held
  bool held_ = false;
};

}  // namespace

class GemmCache::SearchLock {
 public:
  explicit SearchLock(const std::string& path) : lock(path + ".search", kSearchLock) {}
  const FileLock lock;
};

std::string GemmCache::default_folder() {
  const char* own = std::getenv("TE_GEMM_CACHE");
  if (own != nullptr && *own != '\0') return fs::absolute(own).string();
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache == '/') return std::string(cache) + "/te-train";
  const char* home = std::getenv("HOME");
  return home != nullptr && *home == '/' ? std::string(home) + "/.cache/te-train" : "";
}

GemmCache::GemmCache(const std::string& folder, const std::string& gpu, uint64_t library)
    : head_(fmt::format("te-train gemm algorithms 1\ngpu {}\nlibrary {}\n", gpu, library)) {
  if (folder.empty()) return;
  path_ = fmt::format("{}/gemm_{}_cublaslt{}.txt", folder, file_name_of(gpu), library);
  entries_ = read_file();
}

std::map<std::string, GemmCache::Entry> GemmCache::read_file() const {
  const FileText file = te::read_file(path_, kMaxFileBytes);
  if (file.missing) return {};
  auto entries = parse(file.text, head_);
  if (entries) return std::move(*entries);
  log_warning("{}: is damaged; GEMM algorithms are selected again and the file is replaced", path_);
  return {};
}

const GemmCache::Entry* GemmCache::find(const std::string& key) const {
  const auto found = entries_.find(key);
  return found == entries_.end() ? nullptr : &found->second;
}

bool GemmCache::make_folder() const {
  std::error_code error;
  fs::create_directories(fs::path(path_).parent_path(), error);
  return !error;
}

std::shared_ptr<GemmCache::SearchLock> GemmCache::search() {
  if (path_.empty() || !writable_ || !make_folder()) return nullptr;
  auto lock = std::make_shared<SearchLock>(path_);
  merge(read_file());
  return lock;
}

void GemmCache::drop(const std::string& key) {
  entries_.erase(key);
  dropped_.insert(key);
}

void GemmCache::merge(const std::map<std::string, Entry>& others) {
  for (const auto& [key, entry] : others) {
    if (dropped_.count(key) > 0) continue;
    const auto [own, fresh] = entries_.try_emplace(key, entry);
    if (!fresh && own->second.effort <= entry.effort) own->second = entry;
  }
}

void GemmCache::add(const std::string& key, Entry entry) {
  entries_[key] = std::move(entry);
  if (path_.empty() || !writable_) return;
  make_folder();
  const FileLock lock(path_ + ".lock", kWriteLock);
  if (lock.opened() && !lock.held()) return;  // the lock is busy; the next add() also writes this entry
  if (lock.opened()) merge(read_file());
  dropped_.clear();
  const std::string fault = lock.opened() ? write_file() : lock.error();
  writable_ = fault.empty();
  if (!writable_)
    log_warning(
        "{}: cannot be written ({}); every run and rank selects its own GEMM algorithms, so results may "
        "differ in rounding; set TE_GEMM_CACHE to a writable folder",
        path_, fault);
}

std::string GemmCache::write_file() const {
  std::string text = head_;
  for (const auto& [key, entry] : entries_) text += line_of(key, entry);
  text += fmt::format("checksum {:016x}\n", fnv1a(text));
  const std::string temporary = fmt::format("{}.{}.{}.tmp", path_, host_name(), ::getpid());
  std::string fault;
  {
    File file(temporary, O_WRONLY | O_CREAT | O_TRUNC);
    if (!file.is_open() || !file.write_all(text)) fault = file.error();
  }
  std::error_code error;
  if (fault.empty()) fs::rename(temporary, path_, error);
  if (error) fault = error.message();
  if (!fault.empty()) fs::remove(temporary, error);
  return fault;
}

}  // namespace te::kernels
