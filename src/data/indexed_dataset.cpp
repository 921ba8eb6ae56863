// Reader of Megatron's indexed datasets; the writer is in indexed_dataset_writer.cpp.
#include "data/indexed_dataset.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>

#include "core/error.h"
#include "data/index_layout.h"

namespace te::data {

static_assert(std::endian::native == std::endian::little, "the files are little-endian and read in place");

namespace {

template <class T>
T load(const uint8_t* base, int64_t index) {  // memcpy: the arrays of an .idx are not aligned
  T value;
  std::memcpy(&value, base + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

bool is_integer(TokenType type) {
  return type != TokenType::kF32 && type != TokenType::kF64;
}

}  // namespace

int64_t token_size(TokenType type) {
  switch (type) {
    case TokenType::kU8:
    case TokenType::kI8:
      return 1;
    case TokenType::kI16:
    case TokenType::kU16:
      return 2;
    case TokenType::kI32:
    case TokenType::kF32:
      return 4;
    default:
      return 8;
  }
}

const char* token_type_name(TokenType type) {
  static constexpr const char* kNames[] = {"?", "u8", "i8", "i16", "i32", "i64", "f64", "f32", "u16"};
  return kNames[static_cast<int>(type)];
}

TokenType token_type_for_vocab(int64_t vocab_size) {
  return vocab_size < 65500 ? TokenType::kU16 : TokenType::kI32;
}

MappedFile::MappedFile(std::string path) : path_(std::move(path)) {
  // Without waiting for the writer of a pipe.
  const int file = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) {
    const bool has_extension = path_.ends_with(".bin.idx") || path_.ends_with(".idx.idx");
    user_error("{}: cannot be opened ({}); {}", path_, std::strerror(errno),
               has_extension ? "a dataset is named by its prefix, without .bin or .idx"
                             : "make the dataset with te-data tokenize, or correct the path");
  }
  struct stat status = {};
  if (::fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(file);
    user_error("{}: is not a regular file; name a dataset by the prefix of its .bin and .idx", path_);
  }
  size_ = static_cast<size_t>(status.st_size);
  if (size_ > 0) {
    void* address = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file, 0);
    const int error = errno;
    ::close(file);
    if (address == MAP_FAILED) {
      user_error("{}: cannot be mapped ({}); free address space or use a local file system", path_,
                 std::strerror(error));
    }
    data_ = static_cast<const uint8_t*>(address);
    region_ = std::make_unique<MappedRegion>(address, size_, path_);
  } else {
    ::close(file);
  }
}

MappedFile::~MappedFile() {
  region_.reset();
  if (data_ != nullptr) ::munmap(const_cast<uint8_t*>(data_), size_);
}

IndexedDataset::IndexedDataset(std::string prefix)
    : prefix_(std::move(prefix)), index_(prefix_ + ".idx"), tokens_(prefix_ + ".bin") {
  check_header();
  check_sequences();
  check_documents();
}

void IndexedDataset::check_header() {
  const std::span<const uint8_t> bytes = index_.bytes();
  const std::string& path = index_.path();
  if (bytes.size() < kIndexHeaderBytes) {
    user_error("{}: has {} bytes, a dataset index has at least {}; the file is truncated, make it again",
               path, bytes.size(), kIndexHeaderBytes);
  }
  if (std::memcmp(bytes.data(), kIndexMagic, sizeof(kIndexMagic)) != 0) {
    user_error(
        "{}: does not start with MMIDIDX, so it is no Megatron dataset index; make it with te-data tokenize",
        path);
  }
  const uint64_t version = load<uint64_t>(bytes.data() + 9, 0);
  if (version != kIndexVersion) {
    user_error("{}: version {}, only version {} is known; make the dataset again", path, version,
               kIndexVersion);
  }
  const int code = bytes[17];
  if (code < 1 || code > 8) {
    user_error("{}: token type code {} is not one of 1 to 8; make the dataset again", path, code);
  }
  type_ = static_cast<TokenType>(code);
  if (!is_integer(type_)) {
    user_error("{}: holds {} values, tokens must be integers; name a dataset of tokens", path,
               token_type_name(type_));
  }
  const uint64_t sequences = load<uint64_t>(bytes.data() + 18, 0);
  const uint64_t documents = load<uint64_t>(bytes.data() + 26, 0);
  const uint64_t rest = bytes.size() - kIndexHeaderBytes;
  if (sequences > rest / 12 || documents > rest / 8) {
    user_error(
        "{}: {} sequences and {} document marks do not fit into {} bytes; the file is truncated, make it "
        "again",
        path, sequences, documents, bytes.size());
  }
  // No overflow: both are bounded by the file's size.
  const uint64_t expected = 12 * sequences + 8 * documents;
  if (rest != expected && rest != expected + sequences) {
    user_error("{}: has {} bytes, but its counts ask for {}; the file is damaged, make it again", path,
               bytes.size(), kIndexHeaderBytes + expected);
  }
  if (documents == 0) {
    user_error("{}: document_count is 0, it must be 1 or more (documents + 1); make the dataset again", path);
  }
  num_sequences_ = static_cast<int64_t>(sequences);
  num_documents_ = static_cast<int64_t>(documents) - 1;
  num_tokens_ = static_cast<int64_t>(tokens_.bytes().size()) / token_size(type_);
  lengths_ = bytes.data() + kIndexHeaderBytes;
  pointers_ = lengths_ + 4 * sequences;
  documents_ = pointers_ + 8 * sequences;
}

void IndexedDataset::check_sequences() const {
  const int64_t bin_bytes = static_cast<int64_t>(tokens_.bytes().size());
  int64_t position = 0;
  for (int64_t i = 0; i < num_sequences_; ++i) {
    const int32_t length = load<int32_t>(lengths_, i);
    if (length < 0) {
      user_error("{}: sequence {} has length {}, it must not be negative; make the dataset again",
                 index_.path(), i, length);
    }
    const int64_t pointer = load<int64_t>(pointers_, i);
    if (pointer != position) {
      user_error(
          "{}: sequence {} starts at byte {}, the one before it ends at {}; sequences must follow one "
          "another, make the dataset again",
          index_.path(), i, pointer, position);
    }
    position += length * token_size(type_);  // below bin_bytes + 2^34: no overflow
    if (position > bin_bytes) {
      user_error(
          "{}: sequence {} ends at byte {}, but {} has {} bytes; the two files do not belong together or the "
          ".bin is truncated",
          index_.path(), i, position, tokens_.path(), bin_bytes);
    }
  }
  if (position != bin_bytes) {
    user_error("{}: has {} bytes, but {} describes {}; the two files do not belong together, make them again",
               tokens_.path(), bin_bytes, index_.path(), position);
  }
}

void IndexedDataset::check_documents() const {
  int64_t previous = 0;
  for (int64_t i = 0; i <= num_documents_; ++i) {
    const int64_t sequence = load<int64_t>(documents_, i);
    if ((i == 0 && sequence != 0) || sequence < previous || sequence > num_sequences_) {
      user_error(
          "{}: document {} starts at sequence {}, it must be 0 for the first, not decrease, and not pass {}; "
          "make the dataset again",
          index_.path(), i, sequence, num_sequences_);
    }
    previous = sequence;
  }
  if (previous != num_sequences_) {
    user_error("{}: the documents end at sequence {} of {}; make the dataset again", index_.path(), previous,
               num_sequences_);
  }
}

int64_t IndexedDataset::sequence_length(int64_t sequence) const {
  TE_CHECK(sequence >= 0 && sequence < num_sequences_, "{}: sequence {} of {}", prefix_, sequence,
           num_sequences_);
  return load<int32_t>(lengths_, sequence);
}

int64_t IndexedDataset::document_sequence(int64_t document) const {
  TE_CHECK(document >= 0 && document <= num_documents_, "{}: document {} of {}", prefix_, document,
           num_documents_);
  return load<int64_t>(documents_, document);
}

int64_t IndexedDataset::document_begin(int64_t document) const {
  const int64_t sequence = document_sequence(document);
  return sequence == num_sequences_ ? num_tokens_ : load<int64_t>(pointers_, sequence) / token_size(type_);
}

int64_t IndexedDataset::document_at(int64_t position) const {
  TE_CHECK(position >= 0 && position < num_tokens_, "{}: token {} of {}", prefix_, position, num_tokens_);
  int64_t low = 0, high = num_documents_;  // begin(low) <= position < begin(high)
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (document_begin(middle) <= position ? low : high) = middle;
  }
  return low;
}

void IndexedDataset::bad_token(int64_t position, int64_t value, int64_t limit) const {
  const int64_t document = document_at(position);
  user_error(
      "{}.bin: token {} of document {} is {}, it must be 0 or more and below vocab_size = {}; use the "
      "vocabulary of the tokenizer that made the data",
      prefix_, position - document_begin(document), document, value, limit);
}

template <class Stored>
void IndexedDataset::read_as(int64_t begin, int64_t count, int32_t* out, int64_t limit) const {
  const Stored* source = reinterpret_cast<const Stored*>(tokens_.bytes().data()) + begin;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t value = static_cast<int64_t>(source[i]);
    if (value < 0 || value >= limit) [[unlikely]]
      bad_token(begin + i, value, limit);
    out[i] = static_cast<int32_t>(value);
  }
}

void IndexedDataset::read(int64_t begin, int64_t count, int32_t* out, int64_t vocab_size) const {
  TE_CHECK(begin >= 0 && count >= 0 && begin <= num_tokens_ && count <= num_tokens_ - begin,
           "{}: tokens [{}, {} + {}) of {}", prefix_, begin, begin, count, num_tokens_);
  const int64_t limit = vocab_size > 0 ? vocab_size : int64_t{std::numeric_limits<int32_t>::max()};
  switch (type_) {
    case TokenType::kU8:
      return read_as<uint8_t>(begin, count, out, limit);
    case TokenType::kI8:
      return read_as<int8_t>(begin, count, out, limit);
    case TokenType::kI16:
      return read_as<int16_t>(begin, count, out, limit);
    case TokenType::kI32:
      return read_as<int32_t>(begin, count, out, limit);
    case TokenType::kI64:
      return read_as<int64_t>(begin, count, out, limit);
    case TokenType::kU16:
      return read_as<uint16_t>(begin, count, out, limit);
    default:
      TE_CHECK(false, "{}: token type {} passed the check of the header", prefix_, token_type_name(type_));
  }
}

}  // namespace te::data
