// Writes chunks on another thread while the caller prepares the next one. Private to src/convert.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <string>
#include <utility>
#include <vector>

namespace te::convert {

/// Tensors are converted in chunks of about this many bytes.
inline constexpr int64_t kChunkBytes = 16 << 20;

class WriteBehind {
 public:
  using Write = std::function<void(const std::string& name, const std::byte* data, size_t bytes)>;
  /// Calls `write` for one chunk at a time.
  explicit WriteBehind(Write write) : write_(std::move(write)) {}

  /// Buffer of `bytes` bytes for the next chunk.
  std::byte* buffer(size_t bytes) {
    std::vector<std::byte>& buffer = buffers_[next_];
    if (buffer.size() < bytes) buffer.resize(bytes);  // never shrinks, as growing would initialize the bytes
    return buffer.data();
  }
  /// Waits until the previous chunk is written (throws its errors), then starts writing the first `bytes` of buffer().
  void put(const std::string& name, size_t bytes) {
    finish();
    const std::byte* data = buffers_[next_].data();
    pending_ = std::async(std::launch::async, [this, name, data, bytes] { write_(name, data, bytes); });
    next_ = 1 - next_;
  }
  /// Waits for the last chunk.
  void finish() {
    if (pending_.valid()) pending_.get();
  }

 private:
  Write write_;
  std::vector<std::byte> buffers_[2];
  size_t next_ = 0;
  std::future<void> pending_;  // last member, so destroyed first: waits for the chunk that is being written
};

}  // namespace te::convert
