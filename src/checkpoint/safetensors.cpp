// Maps safetensors files for reading, and writes them under a temporary name.
#include "checkpoint/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>

#include "checkpoint/safetensors_header.h"
#include "checkpoint/write_error.h"
#include "core/error.h"
#include "core/file.h"
#include "core/mapped_region.h"

namespace te {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");
constexpr uint64_t kLengthBytes = 8;
constexpr size_t kMinWriteback = 1 << 20;  // bytes of a write that starts writeback at once

std::string reason() {
  return std::strerror(errno);
}

/// Maps a regular file of at least 8 bytes and stores its size in `size`.
std::shared_ptr<const std::byte> map_file(const std::filesystem::path& path, uint64_t& size) {
  const File file(path);
  if (!file.is_open()) user_error("{}: cannot be opened: {}; check the path", path.string(), file.error());
  size = file.bytes();
  if (size < kLengthBytes) {
    user_error(
        "{}: {} bytes are too few for a safetensors file (the header's length has 8); download it again",
        path.string(), size);
  }
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
  if (address == MAP_FAILED) user_error("{}: cannot be mapped: {}", path.string(), reason());
  const size_t length = size;
  auto region = std::make_shared<MappedRegion>(address, length, path.string());
  return {static_cast<const std::byte*>(address), [length, region](const std::byte* mapped) mutable {
            region.reset();
            ::munmap(const_cast<std::byte*>(mapped), length);
          }};
}

void sync_folder(const std::filesystem::path& folder) {
  const int file = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0) return;  // some file systems cannot open a folder; the rename has succeeded anyway
  ::fsync(file);
  ::close(file);
}

}  // namespace

SafetensorsReader::SafetensorsReader(const std::filesystem::path& path) : path_(path) {
  const std::string file = path.string();
  uint64_t size = 0, header_bytes = 0;
  mapping_ = map_file(path, size);
  std::memcpy(&header_bytes, mapping_.get(), kLengthBytes);
  if (header_bytes > size - kLengthBytes) {
    user_error(
        "{}: header of {} bytes in a file of {} bytes; the file is truncated or damaged, download it again",
        file, header_bytes, size);
  }
  if (header_bytes > safetensors::kMaxHeaderBytes) {
    user_error("{}: header of {} bytes exceeds the format's limit of {}; split the file", file, header_bytes,
               safetensors::kMaxHeaderBytes);
  }
  const std::byte* data = mapping_.get() + kLengthBytes + header_bytes;
  const std::string_view text(reinterpret_cast<const char*>(mapping_.get() + kLengthBytes), header_bytes);
  safetensors::Header header = safetensors::parse_header(file, text, size - kLengthBytes - header_bytes);
  metadata_ = std::move(header.metadata);
  tensors_.reserve(header.tensors.size());
  for (safetensors::HeaderTensor& tensor : header.tensors) {
    index_.emplace(tensor.name, tensors_.size());
    tensors_.push_back({std::move(tensor.name), tensor.file_dtype, tensor.dtype, std::move(tensor.shape),
                        data + tensor.begin, tensor.end - tensor.begin,
                        kLengthBytes + header_bytes + tensor.begin});
  }
}

const SafetensorsTensor* SafetensorsReader::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

const SafetensorsTensor& SafetensorsReader::at(std::string_view name) const {
  const SafetensorsTensor* tensor = find(name);
  if (tensor == nullptr) {
    user_error("{}: tensor {} is missing; use a file of the same model", path_.string(),
               safetensors::quote_name(name));
  }
  return *tensor;
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     const std::vector<SafetensorsSpec>& specs,
                                     const SafetensorsMetadata& metadata)
    : path_(path), temporary_(path.string() + ".tmp") {
  const safetensors::Header header = safetensors::plan_header(specs, metadata);
  const std::string text = safetensors::header_text(header);
  const uint64_t header_bytes = text.size(), data_begin = kLengthBytes + header_bytes;
  TE_CHECK(header_bytes <= safetensors::kMaxHeaderBytes, "{}: header of {} bytes exceeds the format's limit",
           path.string(), header_bytes);
  for (const safetensors::HeaderTensor& tensor : header.tensors)
    slots_[tensor.name] = {data_begin + tensor.begin, data_begin + tensor.end};

  file_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file_ < 0) {
    checkpoint::write_error("{}: cannot be created: {}; choose a folder that exists and is writable",
                            temporary_.string(), reason());
  }
  try {
    // Reserves the space so that a full disk is reported now, if the file system supports it.
    const uint64_t size = data_begin + (header.tensors.empty() ? 0 : header.tensors.back().end);
    if (::fallocate(file_, 0, 0, static_cast<off_t>(size)) != 0 && errno == ENOSPC)
      checkpoint::write_error("{}: no disk space for {} bytes; free some or choose another folder",
                              path.string(), size);
    write_at(0, &header_bytes, kLengthBytes);
    write_at(kLengthBytes, text.data(), header_bytes);
  } catch (...) {
    ::close(file_);
    ::unlink(temporary_.c_str());
    throw;
  }
}

SafetensorsWriter::~SafetensorsWriter() {
  if (file_ < 0) return;
  ::close(file_);
  ::unlink(temporary_.c_str());
}

void SafetensorsWriter::write_at(uint64_t offset, const void* data, size_t bytes) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::pwrite(file_, from, bytes, static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      checkpoint::write_error("{}: writing failed: {}; free disk space or choose another folder",
                              temporary_.string(), reason());
    }
    from += written;
    offset += static_cast<uint64_t>(written);
    bytes -= static_cast<size_t>(written);
  }
}

void SafetensorsWriter::write(std::string_view name, const void* data, size_t bytes) {
  const auto found = slots_.find(name);
  TE_CHECK(file_ >= 0, "{}: write after finish()", path_.string());
  TE_CHECK(found != slots_.end(), "{}: tensor {} is not in the header", path_.string(), name);
  Slot& slot = found->second;
  TE_CHECK(bytes <= slot.end - slot.next, "{}: write of {} bytes to tensor {}, which lacks only {}",
           path_.string(), bytes, name, slot.end - slot.next);
  write_at(slot.next, data, bytes);
  // Starts writeback now, so that the disk works while the caller prepares the next write, not only in fsync.
  if (bytes >= kMinWriteback)
    ::sync_file_range(file_, static_cast<off_t>(slot.next), static_cast<off_t>(bytes), SYNC_FILE_RANGE_WRITE);
  slot.next += bytes;
}

void SafetensorsWriter::finish() {
  TE_CHECK(file_ >= 0, "{}: finish() called twice", path_.string());
  for (const auto& [name, slot] : slots_)
    TE_CHECK(slot.next == slot.end, "{}: tensor {} lacks {} bytes", path_.string(), name,
             slot.end - slot.next);
  if (::fsync(file_) != 0)
    checkpoint::write_error("{}: cannot be synced to disk: {}", temporary_.string(), reason());
  if (::rename(temporary_.c_str(), path_.c_str()) != 0)
    checkpoint::write_error("{}: cannot be renamed to {}: {}", temporary_.string(), path_.string(), reason());
  ::close(std::exchange(file_, -1));
  const auto folder = path_.parent_path();
  sync_folder(folder.empty() ? "." : folder);
}

}  // namespace te
