// A file in memory that readers can open by path. It is rewritten in place, because targets run thousands of times per
// second.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>

namespace te::fuzz {

/// A folder of this process in /dev/shm (in memory), or in /tmp if that is not available.
inline std::string folder() {
  static const std::string path = [] {
    const bool memory = ::access("/dev/shm", W_OK) == 0;
    std::string name = std::string(memory ? "/dev/shm" : "/tmp") + "/te_fuzz_" + std::to_string(::getpid());
    ::mkdir(name.c_str(), 0700);
    return name;
  }();
  return path;
}

class FuzzFile {
 public:
  explicit FuzzFile(const std::string& name)
      : path_(folder() + "/" + name),
        file_(::open(path_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)) {
    if (file_ < 0) {
      std::perror(path_.c_str());
      std::exit(1);
    }
  }
  ~FuzzFile() {
    ::close(file_);
    ::unlink(path_.c_str());
    ::rmdir(folder().c_str());
  }
  FuzzFile(const FuzzFile&) = delete;
  FuzzFile& operator=(const FuzzFile&) = delete;

  void write(std::span<const uint8_t> bytes) {
    const bool written = ::ftruncate(file_, 0) == 0 &&
                         ::pwrite(file_, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size());
    if (!written) std::abort();
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int file_;
};

}  // namespace te::fuzz
