#include "checkpoint/reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "checkpoint/folder.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_header.h"
#include "config/config.h"
#include "core/error.h"
#include "core/file.h"
#include "core/stored_values.h"

namespace te::checkpoint {
namespace {

constexpr const char* kCopyAgain = "use another checkpoint, or copy this one again";

template <class... Args>
[[noreturn]] void damaged(fmt::format_string<Args...> format, Args&&... args) {
  throw Damaged(fmt::format(format, std::forward<Args>(args)...));
}

/// Rethrows a UserError of `body` as Damaged.
template <class Body>
decltype(auto) reading(Body&& body) {
  try {
    return body();
  } catch (const UserError& error) {
    throw Damaged(error.what());
  }
}

}  // namespace

// --- shards ------------------------------------------------------------------------------------------------

/// A tensor of a shard: from its header, and checksums from the manifest.
struct StoredTensor {
  DType dtype;
  std::vector<int64_t> shape;
  uint64_t offset = 0, bytes = 0;  ///< in the file
  const std::vector<uint64_t>* checksums = nullptr;
};

/// The open files of a checkpoint, and a cache of one verified block.
class Reader::Shards {
 public:
  Shards(std::filesystem::path folder, const Manifest& manifest, Verify verify)
      : folder_(std::move(folder)), verify_(verify) {
    for (const StoredFile& file : manifest.files) files_.push_back({.stored = file});
  }
  ~Shards() { close_all(); }

  const StoredTensor& tensor(int file, const std::string& name);
  /// Bytes [first, first + count) of a tensor.
  void read(int file, const std::string& name, uint64_t first, uint64_t count, std::byte* out);
  std::string path(int file) const { return (folder_ / files_[file].stored.name).string(); }
  void verify_all();

 private:
  struct File {
    StoredFile stored;
    bool indexed = false;
    std::map<std::string, StoredTensor, std::less<>> tensors;
    int descriptor = -1;
  };
  static constexpr int kMaxOpen = 64;

  void index(int number);
  void index_file(File& file, int number);
  int open(int number);
  void close_all();
  void read_at(int file, uint64_t offset, uint64_t count, std::byte* out);
  void check(int file, const std::string& name, const StoredTensor& stored, uint64_t block,
             const std::byte* data, uint64_t bytes) const;
  void check_finite(int file, const std::string& name, const StoredTensor& stored, const std::byte* data,
                    uint64_t bytes) const;

  std::filesystem::path folder_;
  Verify verify_;
  std::vector<File> files_;
  int num_open_ = 0;

  // The block that was read last: consecutive rows of a column slice are often in the same block.
  std::vector<std::byte> block_;
  const StoredTensor* block_tensor_ = nullptr;
  uint64_t block_index_ = 0;
};

// Reads a shard's header and compares it with the manifest.
void Reader::Shards::index(int number) {
  if (files_[number].indexed) return;
  check_readable(path(number));  // missing permission is a UserError, not a damaged checkpoint
  reading([&] { index_file(files_[number], number); });
}

void Reader::Shards::index_file(File& file, int number) {
  const std::string name = path(number);
  std::error_code error;
  if (!std::filesystem::exists(name, error)) {
    user_error("{}: shard is missing; {}{}", name, kCopyAgain,
               file.stored.name.starts_with("optimizer") ? ", or set checkpoint.load_optimizer: false" : "");
  }
  const SafetensorsReader reader(name);  // its mapping is not kept
  for (const SafetensorsTensor& found : reader.tensors()) {
    const auto sums = file.stored.checksums.find(found.name);
    const uint64_t blocks = (found.bytes + kChecksumBlock - 1) / kChecksumBlock;
    if (sums == file.stored.checksums.end() || sums->second.size() != blocks || !found.dtype) {
      user_error("{}: tensor {} does not match the manifest; {}", name, safetensors::quote_name(found.name),
                 kCopyAgain);
    }
    file.tensors[found.name] = {*found.dtype, found.shape, found.offset, found.bytes, &sums->second};
  }
  for (const auto& [expected, sums] : file.stored.checksums) {
    if (!file.tensors.contains(expected))
      user_error("{}: tensor {} is missing; {}", name, safetensors::quote_name(expected), kCopyAgain);
  }
  file.indexed = true;
}

const StoredTensor& Reader::Shards::tensor(int file, const std::string& name) {
  index(file);
  const auto found = files_[file].tensors.find(name);
  if (found == files_[file].tensors.end())
    damaged("{}: tensor {} is missing; {}", path(file), safetensors::quote_name(name), kCopyAgain);
  return found->second;
}

int Reader::Shards::open(int number) {
  File& file = files_[number];
  if (file.descriptor >= 0) return file.descriptor;
  if (num_open_ >= kMaxOpen) close_all();
  te::File opened(path(number));
  if (!opened.is_open()) damaged("{}: cannot be opened: {}", path(number), opened.error());
  file.descriptor = opened.release();
  ++num_open_;
  return file.descriptor;
}

void Reader::Shards::close_all() {
  for (File& file : files_)
    if (file.descriptor >= 0) ::close(std::exchange(file.descriptor, -1));
  num_open_ = 0;
}

void Reader::Shards::read_at(int file, uint64_t offset, uint64_t count, std::byte* out) {
  const int descriptor = open(file);
  while (count > 0) {
    const ssize_t got = ::pread(descriptor, out, count, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      damaged("{}: cannot be read: {}; {}", path(file), got < 0 ? std::strerror(errno) : "truncated",
              kCopyAgain);
    }
    out += got;
    offset += static_cast<uint64_t>(got);
    count -= static_cast<uint64_t>(got);
  }
}

void Reader::Shards::check(int file, const std::string& name, const StoredTensor& stored, uint64_t block,
                           const std::byte* data, uint64_t bytes) const {
  if (checksum(data, bytes) == (*stored.checksums)[block]) return;
  damaged("{}: tensor {}: checksum of bytes {}..{} does not match: the file is damaged or was changed; {}",
          path(file), safetensors::quote_name(name), block * kChecksumBlock,
          block * kChecksumBlock + bytes - 1, kCopyAgain);
}

// Saving refuses such values, so only imported or edited checkpoints can have them. FP8 amaxes may be infinite.
void Reader::Shards::check_finite(int file, const std::string& name, const StoredTensor& stored,
                                  const std::byte* data, uint64_t bytes) const {
  if (files_[file].stored.name.starts_with("fp8") ||
      are_finite(stored.dtype, data, static_cast<int64_t>(bytes / dtype_size(stored.dtype))))
    return;
  damaged("{}: tensor {} has values that are infinite or NaN, so training cannot continue from it; {}",
          path(file), safetensors::quote_name(name), kCopyAgain);
}

// Complete blocks are read directly into `out`, parts of a block through block_.
void Reader::Shards::read(int file, const std::string& name, uint64_t first, uint64_t count, std::byte* out) {
  const StoredTensor& stored = tensor(file, name);
  TE_CHECK(first <= stored.bytes && count <= stored.bytes - first, "{}: {} bytes at {} of a tensor of {}",
           name, count, first, stored.bytes);
  while (count > 0) {
    const uint64_t block = first / kChecksumBlock, begin = block * kChecksumBlock;
    const uint64_t bytes = std::min<uint64_t>(kChecksumBlock, stored.bytes - begin);
    const uint64_t part = std::min(begin + bytes - first, count);
    if (part == bytes) {
      read_at(file, stored.offset + begin, bytes, out);
      if (verify_ == Verify::on) check(file, name, stored, block, out, bytes);
      check_finite(file, name, stored, out, bytes);
    } else {
      if (block_tensor_ != &stored || block_index_ != block) {
        block_tensor_ = nullptr;
        block_.resize(bytes);
        read_at(file, stored.offset + begin, bytes, block_.data());
        if (verify_ == Verify::on) check(file, name, stored, block, block_.data(), bytes);
        check_finite(file, name, stored, block_.data(), bytes);
        block_tensor_ = &stored;
        block_index_ = block;
      }
      std::memcpy(out, block_.data() + (first - begin), part);
    }
    out += part;
    first += part;
    count -= part;
  }
}

void Reader::Shards::verify_all() {
  const Verify before = std::exchange(verify_, Verify::on);
  block_tensor_ = nullptr;
  std::vector<std::byte> buffer(kChecksumBlock);
  for (int file = 0; file < static_cast<int>(files_.size()); ++file) {
    index(file);
    for (const auto& [name, stored] : files_[file].tensors) {
      for (uint64_t at = 0; at < stored.bytes; at += kChecksumBlock)
        read(file, name, at, std::min<uint64_t>(kChecksumBlock, stored.bytes - at), buffer.data());
    }
  }
  verify_ = before;
}

// --- tensors -----------------------------------------------------------------------------------------------

Reader::Reader(const std::filesystem::path& path, Verify verify)
    : folder_(resolve(path)),
      manifest_((check_readable(folder_ / "manifest.json"), reading([&] { return read_manifest(folder_); }))),
      shards_(std::make_unique<Shards>(folder_, manifest_, verify)) {}

Reader::~Reader() = default;

std::vector<std::string> Reader::names() const {
  std::vector<std::string> names;
  for (const LogicalTensor& tensor : tensors())
    if (!tensor.is_moment()) names.push_back(tensor.name);
  return names;
}

uint64_t Reader::hash() const {
  std::string all;
  for (const StoredFile& file : manifest_.files) {
    for (const auto& [name, blocks] : file.checksums) {
      if (name.starts_with("exp_avg")) continue;
      all += name;
      all.append(reinterpret_cast<const char*>(blocks.data()), blocks.size() * sizeof(blocks[0]));
    }
  }
  return checksum(all.data(), all.size());
}

std::string Reader::config() const {
  return config::upgrade_stored(manifest_.config);
}

config::Config Reader::run_config(const std::vector<std::string>& overrides) const {
  return config::parse_config(config(), (folder_ / "manifest.json").string(), overrides);
}

Reader::Reader(Reader&&) noexcept = default;

bool Fp8State::Row::measured() const {
  return scale != Row{}.scale || std::ranges::any_of(history, [](float amax) { return amax > 0.0f; });
}

const LogicalTensor& Reader::at(std::string_view name) const {
  const LogicalTensor* tensor = find(name);
  if (tensor == nullptr) {
    user_error("{}: tensor {} is missing; use a checkpoint of the same model", folder_.string(),
               safetensors::quote_name(name));
  }
  return *tensor;
}

std::optional<TensorInfo> Reader::info(std::string_view name) const {
  const LogicalTensor* tensor = find(name);
  if (tensor == nullptr) return std::nullopt;
  return TensorInfo{tensor->dtype, tensor->shape};
}

bool Reader::has_optimizer() const {
  return std::ranges::any_of(tensors(), [](const LogicalTensor& tensor) { return tensor.is_moment(); });
}

void Reader::read(const LogicalTensor& tensor, const Block& block, std::byte* out) const {
  TE_CHECK(disjoint({block}, tensor.rows(), tensor.cols()), "{}: the block is not part of the tensor",
           tensor.name);
  const auto size = static_cast<int64_t>(dtype_size(tensor.dtype));
  for (const Slice& slice : tensor.slices) {
    for_each_overlap(slice.block, block, [&](int64_t from, int64_t to, int64_t count) {
      const StoredTensor& stored = shards_->tensor(slice.file, tensor.name);
      const auto held = static_cast<int64_t>(stored.bytes) / size;
      if (stored.dtype != tensor.dtype || slice.offset > held - slice.block.count) {
        damaged("{}: tensor {} does not match the manifest; {}", shards_->path(slice.file),
                safetensors::quote_name(tensor.name), kCopyAgain);
      }
      shards_->read(slice.file, tensor.name, static_cast<uint64_t>((slice.offset + from) * size),
                    static_cast<uint64_t>(count * size), out + to * size);
    });
  }
}

void Reader::read(const LogicalTensor& tensor, const Block& block, float* out) const {
  auto* bytes = reinterpret_cast<std::byte*>(out);
  if (tensor.dtype == DType::f32) return read(tensor, block, bytes);
  if (tensor.dtype != DType::bf16) {
    damaged("{}: tensor {} is {}, must be F32 or BF16; {}", folder_.string(),
            safetensors::quote_name(tensor.name), safetensors::file_dtype_name(tensor.dtype), kCopyAgain);
  }
  read(tensor, block, bytes + 2 * block.count);
  widen_bf16_in_place(reinterpret_cast<std::byte*>(out), block.count);
}

void Reader::read_rows(std::string_view name, int64_t first, int64_t count, float* out) const {
  const LogicalTensor& tensor = at(name);
  read(tensor, Block::rows(first, count, tensor.cols()), out);
}

void Reader::read_rows(std::string_view name, int64_t first, int64_t count, std::byte* out) const {
  const LogicalTensor& tensor = at(name);
  read(tensor, Block::rows(first, count, tensor.cols()), out);
}

// --- FP8 state ---------------------------------------------------------------------------------------------

Fp8State Reader::fp8() const {
  Fp8State state;
  for (const Fp8Part& part : manifest_.fp8) {
    const auto n = static_cast<int64_t>(part.operands.size());
    const auto read_tensor = [&](const char* name, DType dtype, const std::vector<int64_t>& shape,
                                 void* out) {
      const StoredTensor& stored = shards_->tensor(part.file, name);
      if (stored.dtype != dtype || stored.shape != shape) {
        damaged("{}: tensor {} does not match the manifest; {}", shards_->path(part.file), name, kCopyAgain);
      }
      shards_->read(part.file, name, 0, stored.bytes, static_cast<std::byte*>(out));
    };
    const StoredTensor& stored_history = shards_->tensor(part.file, "amax_history");
    const int64_t length = stored_history.shape.empty() ? 0 : stored_history.shape[0];
    std::vector<float> scale(part.operands.size()), history(stored_history.bytes / sizeof(float));
    int32_t position = 0;
    read_tensor("scale", DType::f32, {n, 1}, scale.data());
    read_tensor("amax_history", DType::f32, {length, n}, history.data());
    read_tensor("position", DType::i32, {1}, &position);
    if (!state.rows.empty() && (length != state.history_len || position != state.position)) {
      damaged("{}: the FP8 history differs in length or position from the other pipeline stages; {}",
              shards_->path(part.file), kCopyAgain);
    }
    if (position < 0 || position >= length) {
      damaged("{}: position {} is outside the amax history of length {}; {}", shards_->path(part.file),
              position, length, kCopyAgain);
    }
    state.history_len = length;
    state.position = position;
    for (int64_t i = 0; i < n; ++i) {
      Fp8State::Row& row = state.rows.emplace_back(Fp8State::Row{part.operands[i], scale[i], {}});
      for (int64_t at = 0; at < length; ++at) row.history.push_back(history[at * n + i]);
    }
  }
  return state;
}

void Reader::verify_all() const {
  shards_->verify_all();
}

}  // namespace te::checkpoint
