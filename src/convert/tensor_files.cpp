#include "convert/tensor_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"
#include "core/error.h"
#include "core/file.h"
#include "core/float_types.h"
#include "core/printable.h"
#include "core/stored_values.h"

namespace te::convert {
namespace {

/// The values of all E4M3 codes.
std::array<float, 256> e4m3_values() {
  std::array<float, 256> values;
  for (size_t code = 0; code < values.size(); ++code)
    values[code] = to_float(float8_e4m3{static_cast<uint8_t>(code)});
  return values;
}

/// Dequantizes elements [first, first + count), whose codes are in the last `count` bytes of `out`, to values of type
/// T, rounded to BF16. Works in place because each value overwrites only codes that were already read.
template <class T>
void dequantize_in_place(const StoredTensor& tensor, int64_t first, int64_t count, std::byte* out) {
  static const std::array<float, 256> values = e4m3_values();
  const Multipliers& multipliers = *tensor.multipliers;
  const int64_t cols = tensor.shape[1];
  const std::byte* codes = out + static_cast<size_t>(count) * (sizeof(T) - 1);
  for (int64_t i = 0; i < count;) {  // each row's share of a block, since divisions take longer than all else
    const int64_t row = (first + i) / cols, col = (first + i) % cols, block = col / multipliers.block_cols;
    const float multiplier =
        multipliers.values[static_cast<size_t>(row / multipliers.block_rows * multipliers.cols + block)];
    const int64_t end = std::min(i + std::min((block + 1) * multipliers.block_cols, cols) - col, count);
    for (; i < end; ++i) {
      const float value = values[static_cast<size_t>(codes[i])] * multiplier;
      const T rounded = from_float<T>(to_float(to_bf16(value)));
      std::memcpy(out + static_cast<size_t>(i) * sizeof(T), &rounded, sizeof(T));
    }
  }
}

}  // namespace

int64_t StoredTensor::numel() const {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

TensorFiles::~TensorFiles() {
  for (const File& file : files_) ::close(file.descriptor);
}

TensorFiles::TensorFiles(TensorFiles&& other) noexcept
    : files_(std::exchange(other.files_, {})),
      tensors_(std::move(other.tensors_)),
      untyped_(std::move(other.untyped_)) {}

int TensorFiles::open(const std::filesystem::path& path) {
  te::File file(path);
  if (!file.is_open()) user_error("{}: cannot be opened: {}; check the path", path.string(), file.error());
  files_.push_back({path, file.descriptor(), file.bytes()});
  file.release();
  return static_cast<int>(files_.size()) - 1;
}

void TensorFiles::add_safetensors(const std::filesystem::path& path) {
  const SafetensorsReader reader(path);  // only for the header; data is read with pread
  const int file = open(path);
  for (const SafetensorsTensor& tensor : reader.tensors()) {
    FileType type;
    if (tensor.file_dtype == "F32") {
      type = FileType::f32;
    } else if (tensor.file_dtype == "BF16") {
      type = FileType::bf16;
    } else if (tensor.file_dtype == "F16") {
      type = FileType::f16;
    } else if (tensor.file_dtype == "F8_E4M3") {
      type = FileType::e4m3;
    } else {
      untyped_[tensor.name] = tensor.file_dtype;
      continue;
    }
    add(tensor.name, {file, tensor.offset, type, tensor.shape, nullptr});
  }
}

void TensorFiles::add(const std::string& name, StoredTensor tensor) {
  const auto [place, fresh] = tensors_.try_emplace(name, tensor);
  if (!fresh) {
    user_error("{}: tensor {} is also in {}; a model's files must contain each tensor once", path_of(tensor),
               printable(name), path_of(place->second));
  }
}

void TensorFiles::attach(const std::string& name, std::shared_ptr<const Multipliers> multipliers) {
  tensors_.at(name).multipliers = std::move(multipliers);
}

void TensorFiles::remove(const std::string& name) {
  tensors_.erase(name);
}

const StoredTensor* TensorFiles::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

std::string TensorFiles::path_of(const StoredTensor& tensor) const {
  return files_.at(static_cast<size_t>(tensor.file)).path.string();
}

uint64_t TensorFiles::hash() const {
  std::vector<uint64_t> checksums;
  std::vector<std::byte> bytes(checkpoint::kChecksumBlock);
  for (const File& file : files_) {
    for (uint64_t at = 0; at < file.bytes; at += bytes.size()) {
      const size_t count = std::min<uint64_t>(bytes.size(), file.bytes - at);
      read_bytes(file, at, count, bytes.data());
      checksums.push_back(checkpoint::checksum(bytes.data(), count));
    }
  }
  return checkpoint::checksum(checksums.data(), checksums.size() * sizeof(checksums[0]));
}

uint64_t TensorFiles::bytes_of_file(int file) const {
  return files_.at(static_cast<size_t>(file)).bytes;
}

void TensorFiles::read_bytes(const File& file, uint64_t offset, size_t count, std::byte* out) const {
  while (count > 0) {
    const ssize_t got = ::pread(file.descriptor, out, count, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      user_error("{}: cannot be read: {}; copy the model again", file.path.string(),
                 got < 0 ? std::strerror(errno) : "the file is truncated");
    }
    out += got;
    offset += static_cast<uint64_t>(got);
    count -= static_cast<size_t>(got);
  }
}

void TensorFiles::read(const StoredTensor& tensor, int64_t first, int64_t count, DType as,
                       std::byte* out) const {
  const size_t size = file_type_size(tensor.type), wanted = dtype_size(as);
  const bool fp8 = tensor.type == FileType::e4m3;
  TE_CHECK(as == DType::f32 || (as == DType::bf16 && (fp8 || tensor.type == FileType::bf16)) ||
               (as == DType::e4m3 && fp8),
           "tensor cannot be read as {}", dtype_name(as));
  TE_CHECK(!fp8 || tensor.multipliers != nullptr, "E4M3 tensor without multipliers");
  const uint64_t offset = tensor.offset + static_cast<uint64_t>(first) * size;
  const size_t bytes = static_cast<size_t>(count) * size;
  read_bytes(files_.at(static_cast<size_t>(tensor.file)), offset, bytes,
             out + static_cast<size_t>(count) * (wanted - size));
  if (wanted == size) return;
  if (fp8)
    return as == DType::f32 ? dequantize_in_place<float>(tensor, first, count, out)
                            : dequantize_in_place<bfloat16>(tensor, first, count, out);
  tensor.type == FileType::bf16 ? widen_bf16_in_place(out, count) : widen_f16_in_place(out, count);
}

}  // namespace te::convert
