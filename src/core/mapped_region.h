// Registry of mapped files. If a file shrinks while it is mapped, or its disk fails, the next access raises SIGBUS,
// which would end the program without a message. For a registered region the handler prints one line that names the
// file, and exits with code 2.
#pragma once

#include <atomic>
#include <cstddef>
#include <string>

namespace te {

class MappedRegion {
 public:
  /// Registers `bytes` bytes from `begin` until destruction. The first region of the process installs the signal
  /// handler; a SIGBUS outside the regions goes to the previous handler.
  MappedRegion(const void* begin, size_t bytes, const std::string& path);
  ~MappedRegion();
  MappedRegion(const MappedRegion&) = delete;
  MappedRegion& operator=(const MappedRegion&) = delete;

  /// The region that contains an address, or null. Safe in a signal handler.
  static const MappedRegion* find(const void* address);
  const char* message() const { return message_.c_str(); }

 private:
  const char* begin_;
  size_t bytes_;
  std::string message_;  ///< formatted in advance because a signal handler cannot
  std::atomic<MappedRegion*> next_ = nullptr;
};

}  // namespace te
