// Files mapped into memory, by name. A file that shrinks while it is mapped, or whose disk fails, makes the next access
// to it a SIGBUS, which would end the program without a word: while regions are known, such a signal becomes one line
// that names the file, and exit code 2.
#pragma once

#include <atomic>
#include <cstddef>
#include <string>

namespace te {

class MappedRegion {
 public:
  /// Of `bytes` bytes from `begin`, until it is destroyed. The first one of the process installs the signal's handler;
  /// a SIGBUS elsewhere goes to the handler that was there before.
  MappedRegion(const void* begin, size_t bytes, const std::string& path);
  ~MappedRegion();
  MappedRegion(const MappedRegion&) = delete;
  MappedRegion& operator=(const MappedRegion&) = delete;

  /// The known region of an address, or null. Safe in a signal handler.
  static const MappedRegion* find(const void* address);
  const char* message() const { return message_.c_str(); }

 private:
  const char* begin_;
  size_t bytes_;
  std::string message_;  ///< complete, since a handler cannot format
  std::atomic<MappedRegion*> next_ = nullptr;
};

}  // namespace te
