// Reads blocks and chooses a decompressor; the decompressors are in decompressors.cpp.
#include "text/readers/byte_stream.h"

#include <fcntl.h>

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "text/readers/raw_input.h"

namespace te::text {
namespace {

constexpr size_t kBlock = size_t{256} << 10;
constexpr size_t kMagicBytes = 6;
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

}  // namespace

RawInput::RawInput(const std::string& path)
    : name_(path == "-" ? "(standard input)" : path),
      file_(path == "-" ? File::standard_input() : File(path, O_RDONLY, FileKind::input)),
      buffer_(kBlock) {
  if (!file_.is_open()) user_error("{}: cannot be opened ({}); correct the path", name_, file_.error());
}

bool RawInput::fill() {
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  const int64_t count = file_.read(buffer_.data() + end_, buffer_.size() - end_);
  if (count < 0) user_error("{}: cannot be read ({}); correct the path", name_, file_.error());
  end_ += static_cast<size_t>(count);
  return count > 0;
}

std::span<const uint8_t> RawInput::peek() {
  return peek(1);
}

std::span<const uint8_t> RawInput::peek(size_t count) {
  while (end_ - begin_ < count && fill()) {
  }
  return {buffer_.data() + begin_, end_ - begin_};
}

void RawInput::consume(size_t count) {
  begin_ += count;
  bytes_consumed_ += static_cast<int64_t>(count);
}

struct ByteStream::Impl {
  explicit Impl(const std::string& path)
      : input(path), decompressor(make_decompressor(input.peek(kMagicBytes))) {}
  RawInput input;
  std::unique_ptr<Decompressor> decompressor;  // null: plain
  std::string head;                            // bytes that peek() has returned
  size_t head_read = 0;                        // how many of them read() has returned

  size_t read(char* buffer, size_t size) {
    if (decompressor) return decompressor->read(input, buffer, size);
    const std::span<const uint8_t> bytes = input.peek();
    const size_t count = std::min(size, bytes.size());
    if (count > 0) std::memcpy(buffer, bytes.data(), count);
    input.consume(count);
    return count;
  }
};

ByteStream::ByteStream(const std::string& path) : impl_(std::make_unique<Impl>(path)) {
  if (peek(kByteOrderMark.size()) == kByteOrderMark) impl_->head.clear();
}
ByteStream::~ByteStream() = default;
ByteStream::ByteStream(ByteStream&&) noexcept = default;

size_t ByteStream::read(char* buffer, size_t size) {
  const size_t count = std::min(size, impl_->head.size() - impl_->head_read);
  if (count == 0) return impl_->read(buffer, size);
  impl_->head.copy(buffer, count, impl_->head_read);
  impl_->head_read += count;
  return count;
}

std::string_view ByteStream::peek(size_t size) {
  std::string& head = impl_->head;
  TE_CHECK(impl_->head_read == 0, "{}: peek() must be called before read()", name());
  while (head.size() < size) {
    const size_t there = head.size();
    head.resize(size);
    const size_t count = impl_->read(head.data() + there, size - there);
    head.resize(there + count);
    if (count == 0) break;
  }
  return std::string_view(head).substr(0, size);
}

const std::string& ByteStream::name() const {
  return impl_->input.name();
}

int64_t ByteStream::file_bytes_read() const {
  return impl_->input.bytes_consumed();
}

std::string without_compression_suffix(const std::string& path) {
  for (const std::string suffix : {".gz", ".zst", ".xz"}) {
    if (path.ends_with(suffix)) return path.substr(0, path.size() - suffix.size());
  }
  return path;
}

}  // namespace te::text
