// Streaming decompression of gzip (zlib), zstd and xz (liblzma). A file that ends inside a compressed part is
// truncated, which is an error, never a shorter text.
#include <lzma.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "core/error.h"
#include "text/readers/raw_input.h"

namespace te::text {
namespace {

[[noreturn]] void truncated(const RawInput& input, const char* format) {
  user_error("{}: the {} data ends early, the file is truncated; copy or download it again", input.name(),
             format);
}

[[noreturn]] void damaged(const RawInput& input, const char* format, const std::string& reason) {
  user_error("{}: the {} data is damaged near byte {} ({}); copy or download it again", input.name(), format,
             input.bytes_consumed(), reason);
}

/// zlib counts in 32 bits; a call never requests more than 1 GiB.
unsigned int as_uint(size_t size) {
  return static_cast<unsigned int>(std::min<size_t>(size, size_t{1} << 30));
}

class GzipDecompressor : public Decompressor {
 public:
  GzipDecompressor() {
    constexpr int kGzip = 16;  // added to the window bits: expect the header and trailer of gzip
    TE_CHECK(inflateInit2(&stream_, MAX_WBITS + kGzip) == Z_OK, "zlib: out of memory");
  }
  ~GzipDecompressor() override { inflateEnd(&stream_); }

  size_t read(RawInput& input, char* buffer, size_t size) override {
    while (!done_) {
      const std::span<const uint8_t> bytes = input.peek();
      stream_.next_in = const_cast<uint8_t*>(bytes.data());
      stream_.avail_in = as_uint(bytes.size());
      stream_.next_out = reinterpret_cast<uint8_t*>(buffer);
      stream_.avail_out = as_uint(size);
      const unsigned int offered = stream_.avail_in, capacity = stream_.avail_out;
      const int status = inflate(&stream_, Z_NO_FLUSH);
      input.consume(offered - stream_.avail_in);
      if (status == Z_STREAM_END) {
        next_member(input);
      } else if (status != Z_OK && status != Z_BUF_ERROR) {
        damaged(input, name(), stream_.msg != nullptr ? stream_.msg : "no gzip header");
      }
      if (stream_.avail_out < capacity) return capacity - stream_.avail_out;
      if (bytes.empty() && !done_) truncated(input, name());
    }
    return 0;
  }
  const char* name() const override { return "gzip"; }

 private:
  /// A file can have several members, and zeros can pad the end (as on tapes).
  void next_member(RawInput& input) {
    while (!input.peek().empty() && input.peek()[0] == 0) input.consume(1);
    done_ = input.peek().empty();
    if (!done_) inflateReset(&stream_);
  }

  z_stream stream_ = {};
  bool done_ = false;
};

class ZstdDecompressor : public Decompressor {
 public:
  ZstdDecompressor() : stream_(ZSTD_createDStream()) {
    TE_CHECK(stream_ != nullptr, "zstd: out of memory");
    // Files created with --long=31 need a window of 2 GiB, which is allocated only for such files.
    ZSTD_DCtx_setParameter(stream_, ZSTD_d_windowLogMax, sizeof(void*) == 8 ? 31 : 30);
  }
  ~ZstdDecompressor() override { ZSTD_freeDStream(stream_); }
  ZstdDecompressor(const ZstdDecompressor&) = delete;
  ZstdDecompressor& operator=(const ZstdDecompressor&) = delete;

  size_t read(RawInput& input, char* buffer, size_t size) override {
    while (true) {
      const std::span<const uint8_t> bytes = input.peek();
      if (bytes.empty() && frame_ended_) return 0;
      ZSTD_inBuffer in = {bytes.data(), bytes.size(), 0};
      ZSTD_outBuffer out = {buffer, size, 0};
      const size_t status = ZSTD_decompressStream(stream_, &out, &in);
      if (ZSTD_isError(status) != 0) damaged(input, name(), ZSTD_getErrorName(status));
      input.consume(in.pos);
      frame_ended_ = status == 0;
      if (out.pos > 0) return out.pos;
      if (bytes.empty() && !frame_ended_) truncated(input, name());
    }
  }
  const char* name() const override { return "zstd"; }

 private:
  ZSTD_DStream* stream_;
  bool frame_ended_ = false;
};

class XzDecompressor : public Decompressor {
 public:
  XzDecompressor() {
    constexpr uint64_t kMemoryLimit = uint64_t{2}
                                      << 30;  // xz -9 needs 65 MiB, the largest dictionary 1.5 GiB
    TE_CHECK(lzma_stream_decoder(&stream_, kMemoryLimit, LZMA_CONCATENATED) == LZMA_OK, "xz: out of memory");
  }
  ~XzDecompressor() override { lzma_end(&stream_); }
  XzDecompressor(const XzDecompressor&) = delete;
  XzDecompressor& operator=(const XzDecompressor&) = delete;

  size_t read(RawInput& input, char* buffer, size_t size) override {
    while (!done_) {
      const std::span<const uint8_t> bytes = input.peek();
      stream_.next_in = bytes.data();
      stream_.avail_in = bytes.size();
      stream_.next_out = reinterpret_cast<uint8_t*>(buffer);
      stream_.avail_out = size;
      const lzma_ret status = lzma_code(&stream_, bytes.empty() ? LZMA_FINISH : LZMA_RUN);
      input.consume(bytes.size() - stream_.avail_in);
      done_ = status == LZMA_STREAM_END;
      if (status == LZMA_BUF_ERROR && bytes.empty()) truncated(input, name());
      if (!done_ && status != LZMA_OK && status != LZMA_BUF_ERROR) damaged(input, name(), reason(status));
      if (stream_.avail_out < size) return size - stream_.avail_out;
    }
    return 0;
  }
  const char* name() const override { return "xz"; }

 private:
  static const char* reason(lzma_ret status) {
    switch (status) {
      case LZMA_MEMLIMIT_ERROR:
        return "it needs more than 2 GiB of memory";
      case LZMA_FORMAT_ERROR:
        return "not the xz format";
      case LZMA_OPTIONS_ERROR:
        return "an option that this liblzma does not support";
      case LZMA_MEM_ERROR:
        return "out of memory";
      default:
        return "a checksum or a field is wrong";
    }
  }

  lzma_stream stream_ = LZMA_STREAM_INIT;
  bool done_ = false;
};

}  // namespace

std::unique_ptr<Decompressor> make_decompressor(std::span<const uint8_t> head) {
  const auto starts_with = [&](std::initializer_list<uint8_t> magic) {
    return head.size() >= magic.size() && std::equal(magic.begin(), magic.end(), head.begin());
  };
  if (starts_with({0x1f, 0x8b})) return std::make_unique<GzipDecompressor>();
  // Files of pzstd begin with a skippable frame, whose magic number is 5? 2a 4d 18.
  const bool skippable =
      head.size() >= 4 && head[0] >> 4 == 5 && head[1] == 0x2a && head[2] == 0x4d && head[3] == 0x18;
  if (skippable || starts_with({0x28, 0xb5, 0x2f, 0xfd})) return std::make_unique<ZstdDecompressor>();
  if (starts_with({0xfd, '7', 'z', 'X', 'Z', 0})) return std::make_unique<XzDecompressor>();
  return nullptr;
}

}  // namespace te::text
