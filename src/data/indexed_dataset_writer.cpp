// Writer of Megatron's indexed datasets.
//
// publish() removes an old .idx of that name, renames .bin and the record, and renames .idx last. A dataset without its
// .idx does not exist for readers, so an index never refers to the tokens of another run. PREFIX.idx.tmp is locked from
// the constructor on: it is renamed or removed last, so its lock protects all files of the prefix from another writer.
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>

#include "core/error.h"
#include "core/file.h"
#include "data/index_layout.h"
#include "data/indexed_dataset.h"

namespace te::data {
namespace {

// Lengths are i32; a longer document is stored as several sequences.
constexpr int64_t kMaxSequenceTokens = int64_t{1} << 30;
constexpr size_t kBufferBytes = size_t{1} << 20;

[[noreturn]] void write_failed(const std::string& path) {
  user_error("{}: cannot be written ({}); check the folder's rights and free space", path,
             std::strerror(errno));
}

IndexedDatasetWriter::OpenFile open_stream(File file, const std::string& path) {
  if (!file.is_open())
    user_error("{}: cannot be written ({}); check the folder's rights and free space", path, file.error());
  IndexedDatasetWriter::OpenFile stream(::fdopen(file.descriptor(), "wb"));
  if (!stream) write_failed(path);
  file.release();
  return stream;
}

IndexedDatasetWriter::OpenFile open_for_writing(const std::string& path) {
  // A pipe without a reader is refused.
  return open_stream(File(path, O_WRONLY | O_CREAT | O_TRUNC, FileKind::input), path);
}

/// Opens PREFIX.idx.tmp as an empty file with an exclusive lock, which lasts until it is closed. UserError if another
/// writer holds the lock. A file system without locks is used without one, and a device has none.
IndexedDatasetWriter::OpenFile open_locked(const std::string& prefix) {
  const std::string path = prefix + ".idx.tmp";
  while (true) {
    File file(path, O_WRONLY | O_CREAT, FileKind::input);
    std::error_code ignored;
    if (std::filesystem::is_regular_file(path, ignored) && file.is_open() &&
        ::flock(file.descriptor(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      user_error(
          "{}: another te-data writes a dataset with this prefix; wait for it, or choose another prefix",
          prefix);
    }
    // The other writer may have renamed or removed the file after it was opened here.
    if (file.is_open() && !is_file_at(file.descriptor(), path)) continue;
    if (file.is_open() && ::ftruncate(file.descriptor(), 0) != 0 && errno != EINVAL)  // EINVAL: a device
      write_failed(path);
    return open_stream(std::move(file), path);
  }
}

void write_bytes(const IndexedDatasetWriter::OpenFile& file, const void* data, size_t bytes,
                 const std::string& path) {
  if (bytes > 0 && std::fwrite(data, 1, bytes, file.get()) != bytes) write_failed(path);
}

void sync(const IndexedDatasetWriter::OpenFile& file, const std::string& path) {
  if (std::fflush(file.get()) != 0 || ::fsync(::fileno(file.get())) != 0) write_failed(path);
}

void sync_and_close(IndexedDatasetWriter::OpenFile file, const std::string& path) {
  sync(file, path);
  if (std::fclose(file.release()) != 0) write_failed(path);
}

void rename_file(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) write_failed(to);
}

/// Syncs the folder, which makes renames durable. Not every file system supports this, so failures are ignored.
void sync_folder(const std::string& prefix) {
  const std::filesystem::path folder = std::filesystem::absolute(prefix).parent_path();
  const int file = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0) return;
  ::fsync(file);
  ::close(file);
}

template <class Stored>
bool append_as(std::span<const int32_t> tokens, std::vector<uint8_t>& buffer) {
  const size_t start = buffer.size();
  buffer.resize(start + tokens.size() * sizeof(Stored));
  for (size_t i = 0; i < tokens.size(); ++i) {
    const Stored value = static_cast<Stored>(tokens[i]);
    if (static_cast<int64_t>(value) != tokens[i]) return false;
    std::memcpy(buffer.data() + start + i * sizeof(Stored), &value, sizeof(Stored));
  }
  return true;
}

bool append_tokens(TokenType type, std::span<const int32_t> tokens, std::vector<uint8_t>& buffer) {
  switch (type) {
    case TokenType::kU8:
      return append_as<uint8_t>(tokens, buffer);
    case TokenType::kI8:
      return append_as<int8_t>(tokens, buffer);
    case TokenType::kI16:
      return append_as<int16_t>(tokens, buffer);
    case TokenType::kU16:
      return append_as<uint16_t>(tokens, buffer);
    case TokenType::kI32:
      return append_as<int32_t>(tokens, buffer);
    case TokenType::kI64:
      return append_as<int64_t>(tokens, buffer);
    default:
      return false;
  }
}

}  // namespace

IndexedDatasetWriter::IndexedDatasetWriter(std::string prefix, TokenType type)
    : prefix_(std::move(prefix)), type_(type) {
  TE_CHECK(type != TokenType::kF32 && type != TokenType::kF64, "{}: tokens must be integers", prefix_);
  const std::filesystem::path name = std::filesystem::path(prefix_).filename();
  if (name.empty() || std::filesystem::is_directory(prefix_)) {
    user_error("output prefix `{}`: is a folder; append the name of the dataset, as in `{}`", prefix_,
               (std::filesystem::path(prefix_) / "corpus").string());
  }
  const std::filesystem::path folder = std::filesystem::absolute(prefix_).parent_path();
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    user_error("{}: cannot be created ({}); correct the output prefix", folder.string(), error.message());
  index_file_ = open_locked(prefix_);
  try {
    file_ = open_for_writing(prefix_ + ".bin.tmp");
  } catch (...) {
    std::remove((prefix_ + ".idx.tmp").c_str());
    throw;
  }
}

IndexedDatasetWriter::~IndexedDatasetWriter() {
  if (!published_) remove_temporary_files();
}

void IndexedDatasetWriter::remove_temporary_files() const {
  std::remove((prefix_ + ".bin.tmp").c_str());
  std::remove((dataset_record_path(prefix_) + ".tmp").c_str());
  std::remove((prefix_ + ".idx.tmp").c_str());  // last: its lock protects the others
}

void IndexedDatasetWriter::append(std::span<const int32_t> tokens) {
  TE_CHECK(file_ != nullptr, "{}: append after the end", prefix_);
  while (!tokens.empty()) {
    const size_t remaining = static_cast<size_t>(kMaxSequenceTokens - sequence_tokens_);
    const std::span<const int32_t> part = tokens.first(std::min(tokens.size(), remaining));
    write_tokens(part);
    sequence_tokens_ += static_cast<int64_t>(part.size());
    if (sequence_tokens_ == kMaxSequenceTokens) end_sequence();
    tokens = tokens.subspan(part.size());
  }
}

void IndexedDatasetWriter::write_tokens(std::span<const int32_t> tokens) {
  const size_t step = kBufferBytes / static_cast<size_t>(token_size(type_));
  for (size_t begin = 0; begin < tokens.size(); begin += step) {
    const std::span<const int32_t> part = tokens.subspan(begin, std::min(step, tokens.size() - begin));
    buffer_.clear();
    TE_CHECK(append_tokens(type_, part, buffer_), "{}: a token does not fit {}", prefix_,
             token_type_name(type_));
    write_bytes(file_, buffer_.data(), buffer_.size(), prefix_ + ".bin.tmp");
    largest_token_ = std::max<int64_t>(largest_token_, *std::ranges::max_element(part));
  }
  num_tokens_ += static_cast<int64_t>(tokens.size());
}

void IndexedDatasetWriter::end_sequence() {
  lengths_.push_back(static_cast<int32_t>(sequence_tokens_));
  sequence_tokens_ = 0;
}

void IndexedDatasetWriter::end_document() {
  const bool has_sequence = static_cast<int64_t>(lengths_.size()) > document_indices_.back();
  if (sequence_tokens_ > 0 || !has_sequence) end_sequence();
  document_indices_.push_back(static_cast<int64_t>(lengths_.size()));
}

void IndexedDatasetWriter::append_dataset(const IndexedDataset& dataset,
                                          const std::function<void(int64_t bytes)>& on_bytes) {
  TE_CHECK(file_ != nullptr && sequence_tokens_ == 0, "{}: append_dataset inside a document", prefix_);
  TE_CHECK(dataset.token_type() == type_, "{}: append_dataset of {} tokens to {} tokens", prefix_,
           token_type_name(dataset.token_type()), token_type_name(type_));
  dataset.check_all();
  for (std::span<const uint8_t> rest = dataset.token_bytes(); !rest.empty();) {
    const std::span<const uint8_t> part = rest.first(std::min(kBufferBytes, rest.size()));
    write_bytes(file_, part.data(), part.size(), prefix_ + ".bin.tmp");
    rest = rest.subspan(part.size());
    on_bytes(static_cast<int64_t>(part.size()));
  }
  const auto first_sequence = static_cast<int64_t>(lengths_.size());
  for (int64_t i = 0; i < dataset.num_sequences(); ++i) {
    lengths_.push_back(static_cast<int32_t>(dataset.sequence_length(i)));
  }
  for (int64_t i = 1; i <= dataset.num_documents(); ++i) {
    document_indices_.push_back(first_sequence + dataset.document_sequence(i));
  }
  num_tokens_ += dataset.num_tokens();
}

void IndexedDatasetWriter::write_index() {
  const std::string path = prefix_ + ".idx.tmp";
  const uint8_t code = static_cast<uint8_t>(type_);
  const uint64_t counts[2] = {lengths_.size(), document_indices_.size()};
  std::vector<int64_t> pointers(lengths_.size());
  int64_t position = 0;
  for (size_t i = 0; i < lengths_.size(); ++i) {
    pointers[i] = position;
    position += lengths_[i] * token_size(type_);
  }
  write_bytes(index_file_, kIndexMagic, sizeof(kIndexMagic), path);
  write_bytes(index_file_, &kIndexVersion, sizeof(kIndexVersion), path);
  write_bytes(index_file_, &code, sizeof(code), path);
  write_bytes(index_file_, counts, sizeof(counts), path);
  write_bytes(index_file_, lengths_.data(), lengths_.size() * sizeof(int32_t), path);
  write_bytes(index_file_, pointers.data(), pointers.size() * sizeof(int64_t), path);
  write_bytes(index_file_, document_indices_.data(), document_indices_.size() * sizeof(int64_t), path);
  sync(index_file_, path);
}

void IndexedDatasetWriter::describe(TokenizerRecord tokenizer, int64_t largest_token) {
  tokenizer_ = std::move(tokenizer);
  largest_token_ = std::max(largest_token_, largest_token);
}

void IndexedDatasetWriter::write_record() {
  const std::string path = dataset_record_path(prefix_) + ".tmp";
  const std::string text = to_json({.tokenizer = *tokenizer_,
                                    .documents = num_documents(),
                                    .tokens = num_tokens_,
                                    .largest_token = largest_token_});
  OpenFile file = open_for_writing(path);
  write_bytes(file, text.data(), text.size(), path);
  sync_and_close(std::move(file), path);
}

void IndexedDatasetWriter::complete() {
  TE_CHECK(file_ != nullptr, "{}: completed twice", prefix_);
  if (sequence_tokens_ > 0) end_document();
  sync_and_close(std::move(file_), prefix_ + ".bin.tmp");
  write_index();
  if (tokenizer_) write_record();
  completed_ = true;
}

void IndexedDatasetWriter::publish() {
  TE_CHECK(completed_ && !published_, "{}: publish() must follow complete() once", prefix_);
  const std::string record = dataset_record_path(prefix_);
  for (const std::string& old : {prefix_ + ".idx", record}) {
    if (std::remove(old.c_str()) != 0 && errno != ENOENT) write_failed(old);
  }
  rename_file(prefix_ + ".bin.tmp", prefix_ + ".bin");
  if (tokenizer_) rename_file(record + ".tmp", record);
  rename_file(prefix_ + ".idx.tmp", prefix_ + ".idx");
  published_ = true;
  index_file_.reset();
  sync_folder(prefix_);
}

}  // namespace te::data
