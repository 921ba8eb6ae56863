// Reader of Megatron's indexed datasets; the writer is in indexed_dataset_writer.cpp.
#include "data/indexed_dataset.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
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
T load(const uint8_t* base, int64_t index) {  // memcpy, because the arrays of an .idx are not aligned
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
  // O_NONBLOCK: do not wait for the writer of a pipe.
  const int file = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) {
    const bool has_extension = path_.ends_with(".bin.idx") || path_.ends_with(".idx.idx");
    user_error("{}: cannot be opened ({}); {}", path_, std::strerror(errno),
               has_extension ? "name a dataset by its prefix, without .bin or .idx"
                             : "create the dataset with te-data tokenize, or correct the path");
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
  check_ends();
}

void IndexedDataset::check_all() const {
  check_sequences();
  check_documents();
}

void IndexedDataset::check_header() {
  const std::span<const uint8_t> bytes = index_.bytes();
  const std::string& path = index_.path();
  if (bytes.size() < kIndexHeaderBytes) {
    user_error(
        "{}: has {} bytes, but a dataset index has at least {}; the file is truncated, create it again", path,
        bytes.size(), kIndexHeaderBytes);
  }
  if (std::memcmp(bytes.data(), kIndexMagic, sizeof(kIndexMagic)) != 0) {
    user_error(
        "{}: does not start with MMIDIDX, so it is not a Megatron dataset index; create it with te-data "
        "tokenize",
        path);
  }
  const uint64_t version = load<uint64_t>(bytes.data() + 9, 0);
  if (version != kIndexVersion) {
    user_error("{}: has version {}, but only version {} is supported; create the dataset again", path,
               version, kIndexVersion);
  }
  const int code = bytes[17];
  if (code < 1 || code > 8) {
    user_error("{}: token type code {} is not one of 1 to 8; create the dataset again", path, code);
  }
  type_ = static_cast<TokenType>(code);
  if (!is_integer(type_)) {
    user_error("{}: contains {} values, but tokens must be integers; name a dataset of tokens", path,
               token_type_name(type_));
  }
  const uint64_t sequences = load<uint64_t>(bytes.data() + 18, 0);
  const uint64_t documents = load<uint64_t>(bytes.data() + 26, 0);
  const uint64_t rest = bytes.size() - kIndexHeaderBytes;
  if (sequences > rest / 12 || documents > rest / 8) {
    user_error(
        "{}: {} sequences and {} document indices do not fit into {} bytes; the file is truncated, create it "
        "again",
        path, sequences, documents, bytes.size());
  }
  // No overflow: both are bounded by the file's size.
  const uint64_t expected = 12 * sequences + 8 * documents;
  if (rest != expected && rest != expected + sequences) {
    user_error("{}: has {} bytes, but its counts need {}; the file is damaged, create it again", path,
               bytes.size(), kIndexHeaderBytes + expected);
  }
  if (documents == 0) {
    user_error("{}: document_count is 0, but must be at least 1 (documents + 1); create the dataset again",
               path);
  }
  num_sequences_ = static_cast<int64_t>(sequences);
  num_documents_ = static_cast<int64_t>(documents) - 1;
  size_shift_ = std::countr_zero(static_cast<uint64_t>(token_size(type_)));
  num_tokens_ = static_cast<int64_t>(tokens_.bytes().size()) >> size_shift_;
  lengths_ = bytes.data() + kIndexHeaderBytes;
  pointers_ = lengths_ + 4 * sequences;
  documents_ = pointers_ + 8 * sequences;
}

// Checks the ends of the index and the size of the .bin, which every valid dataset satisfies.
void IndexedDataset::check_ends() const {
  if (const int64_t first = document_sequence(0); first != 0) bad_document(0, first);
  if (const int64_t end = document_sequence(num_documents_); end != num_sequences_) {
    user_error("{}: the documents end at sequence {} of {}; create the dataset again", index_.path(), end,
               num_sequences_);
  }
  const int64_t last = num_sequences_ - 1;
  if (last >= 0 && sequence_begin(0) != 0)
    user_error("{}: sequence 0 starts at byte {}, not 0; create the dataset again", index_.path(),
               load<int64_t>(pointers_, 0));
  // Unsigned arithmetic, because a damaged index can contain any numbers; a sum that wraps around does not match
  // either.
  const auto described = static_cast<int64_t>(
      last < 0 ? 0
               : load<uint64_t>(pointers_, last) +
                     static_cast<uint64_t>(int64_t{load<int32_t>(lengths_, last)} * token_size(type_)));
  const auto bin_bytes = static_cast<int64_t>(tokens_.bytes().size());
  if (described == bin_bytes) return;
  user_error("{}: has {} bytes, but {} describes {}; the two files do not match, create the dataset again",
             tokens_.path(), bin_bytes, index_.path(), described);
}

void IndexedDataset::check_sequences() const {
  int64_t end = 0;
  for (int64_t i = 0; i < num_sequences_; ++i) {
    check_sequence(i);
    end += load<int32_t>(lengths_, i);
  }
  TE_CHECK(end == num_tokens_, "{}: {} of {} tokens in sequences", prefix_, end, num_tokens_);
}

void IndexedDataset::check_documents() const {
  std::vector<int64_t> lengths(4096);
  for (int64_t first = 0; first < num_documents_; first += static_cast<int64_t>(lengths.size())) {
    const auto count = std::min(lengths.size(), static_cast<size_t>(num_documents_ - first));
    read_document_lengths(first, std::span(lengths).first(count));
  }
}

void IndexedDataset::check_sequence(int64_t sequence) const {
  const int64_t length = load<int32_t>(lengths_, sequence), begin = sequence_begin(sequence),
                next = sequence_begin(sequence + 1);
  if (length < 0) {
    user_error("{}: sequence {} has length {}, which must not be negative; create the dataset again",
               index_.path(), sequence, length);
  }
  if (begin + length != next) {
    user_error(
        "{}: sequence {} starts at byte {}, but the previous one ends at {}; sequences must be contiguous, "
        "create the dataset again",
        index_.path(), sequence + 1, next << size_shift_, (begin + length) << size_shift_);
  }
}

void IndexedDataset::bad_document(int64_t document, int64_t sequence) const {
  user_error(
      "{}: document {} starts at sequence {}; starts must begin with 0, not decrease, and not exceed {}; "
      "create the dataset again",
      index_.path(), document, sequence, num_sequences_);
}

int64_t IndexedDataset::sequence_begin(int64_t sequence) const {
  if (sequence == num_sequences_) return num_tokens_;
  const int64_t pointer = load<int64_t>(pointers_, sequence), position = pointer >> size_shift_;
  if (pointer < 0 || position > num_tokens_ || position << size_shift_ != pointer) [[unlikely]] {
    user_error(
        "{}: sequence {} starts at byte {}, which is not the start of a token in the {} bytes of {}; create "
        "the dataset again",
        index_.path(), sequence, pointer, tokens_.bytes().size(), tokens_.path());
  }
  return position;
}

int64_t IndexedDataset::sequence_length(int64_t sequence) const {
  TE_CHECK(sequence >= 0 && sequence < num_sequences_, "{}: sequence {} of {}", prefix_, sequence,
           num_sequences_);
  return load<int32_t>(lengths_, sequence);
}

int64_t IndexedDataset::document_sequence(int64_t document) const {
  TE_CHECK(document >= 0 && document <= num_documents_, "{}: document {} of {}", prefix_, document,
           num_documents_);
  const int64_t sequence = load<int64_t>(documents_, document);
  if (sequence < 0 || sequence > num_sequences_) [[unlikely]]
    bad_document(document, sequence);
  return sequence;
}

IndexedDataset::Extent IndexedDataset::document(int64_t document) const {
  const int64_t first = document_sequence(document), last = document_sequence(document + 1) - 1;
  if (last < first - 1) bad_document(document + 1, last + 1);
  if (last < first) return {sequence_begin(first), sequence_begin(first)};
  check_sequence(first);
  if (last > first) check_sequence(last);
  const Extent extent = {sequence_begin(first), sequence_begin(last + 1)};
  if (extent.length() < 0) [[unlikely]] {
    user_error("{}: document {} starts at token {} and ends at {}; create the dataset again", index_.path(),
               document, extent.begin, extent.end);
  }
  return extent;
}

void IndexedDataset::read_document_lengths(int64_t first, std::span<int64_t> lengths) const {
  int64_t sequence = document_sequence(first), begin = sequence_begin(sequence);
  for (int64_t& length : lengths) {
    const int64_t next = document_sequence(++first), end = sequence_begin(next);
    // Almost all documents have one sequence.
    const bool plain =
        next == sequence + 1 && end - begin == load<int32_t>(lengths_, sequence) && end >= begin;
    length = plain ? end - begin : document_length(first - 1);
    sequence = next;
    begin = end;
  }
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
      "{}.bin: token {} of document {} is {}, but must be at least 0 and below vocab_size = {}; use the "
      "vocabulary of the tokenizer that the data was created with",
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
      TE_CHECK(false, "{}: check_header() accepted the token type {}", prefix_, token_type_name(type_));
  }
}

}  // namespace te::data
