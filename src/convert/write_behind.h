// Writes pieces on a thread of its own while the caller makes the next one. Private to src/convert.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <string>
#include <utility>
#include <vector>

namespace te::convert {

/// Tensors are converted in pieces of about so many bytes.
inline constexpr int64_t kPieceBytes = 16 << 20;

class WriteBehind {
 public:
  using Write = std::function<void(const std::string& name, const std::byte* data, size_t bytes)>;
  /// `write` is called for one piece after the other.
  explicit WriteBehind(Write write) : write_(std::move(write)) {}

  /// Where the next piece is made: room for `bytes`.
  std::byte* buffer(size_t bytes) {
    std::vector<std::byte>& buffer = buffers_[next_];
    if (buffer.size() < bytes) buffer.resize(bytes);  // never smaller: growing again would clear it
    return buffer.data();
  }
  /// Hands the first `bytes` of buffer() over, once the piece before is written; its errors are thrown here.
  void put(const std::string& name, size_t bytes) {
    finish();
    const std::byte* data = buffers_[next_].data();
    pending_ = std::async(std::launch::async, [this, name, data, bytes] { write_(name, data, bytes); });
    next_ = 1 - next_;
  }
  /// Waits for the last piece.
  void finish() {
    if (pending_.valid()) pending_.get();
  }

 private:
  Write write_;
  std::vector<std::byte> buffers_[2];
  size_t next_ = 0;
  std::future<void> pending_;  // destroyed first: waits for the piece that is being written
};

}  // namespace te::convert
