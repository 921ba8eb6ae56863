// Megatron's indexed dataset: a pair of files PREFIX.bin and PREFIX.idx, little-endian.
//
//   PREFIX.bin  the tokens
//   PREFIX.idx  9 bytes "MMIDIDX\0\0", u64 version = 1, u8 token type,
//               u64 sequence_count, u64 document_count,
//               i32 lengths[sequence_count]            tokens of each sequence
//               i64 byte_pointers[sequence_count]      offset of each sequence in the .bin
//               i64 document_indices[document_count]   first sequence of each document, then sequence_count;
//                                                      so documents = document_count - 1
//               i8  modes[sequence_count]              optional, ignored
//
// Format: Megatron-LM, megatron/core/datasets/indexed_dataset.py. The reader accepts only files as Megatron writes
// them: the sequences in the .bin are in order and without gaps, so the tokens of a document are contiguous.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/mapped_region.h"
#include "data/dataset_record.h"

namespace te::data {

/// The dtype codes of the .idx. The reader and the writer support the integer types and refuse floats.
enum class TokenType : uint8_t {
  kU8 = 1,
  kI8 = 2,
  kI16 = 3,
  kI32 = 4,
  kI64 = 5,
  kF64 = 6,
  kF32 = 7,
  kU16 = 8
};

int64_t token_size(TokenType type);           ///< bytes
const char* token_type_name(TokenType type);  ///< "u16", "i32", ...

/// Megatron's choice: u16 below a vocabulary of 65500, else i32.
TokenType token_type_for_vocab(int64_t vocab_size);

/// A file that is mapped read-only; bytes() of an empty file is empty. UserError if the file cannot be opened. If the
/// file shrinks while it is mapped, the program ends with an error (core/mapped_region.h).
class MappedFile {
 public:
  explicit MappedFile(std::string path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  std::span<const uint8_t> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
  std::unique_ptr<MappedRegion> region_;
};

/// Reader. The constructor takes constant time: it checks the header, both ends of the index and the sizes of the two
/// files. Every other number is checked when it is used; check_all() checks all of them. A failed check is a UserError
/// that names the file, the rule and the remedy. Thread safe after construction.
class IndexedDataset {
 public:
  /// Tokens [begin, end) of the .bin.
  struct Extent {
    int64_t begin = 0, end = 0;
    int64_t length() const { return end - begin; }
  };

  explicit IndexedDataset(std::string prefix);
  /// Checks every document like reading it does, in one pass over the index.
  void check_documents() const;
  /// Checks every number of the index.
  void check_all() const;

  const std::string& prefix() const { return prefix_; }
  TokenType token_type() const { return type_; }
  int64_t num_sequences() const { return num_sequences_; }
  int64_t num_documents() const { return num_documents_; }
  int64_t num_tokens() const { return num_tokens_; }

  /// The position of a document, which directly follows the previous one. Checks both ends.
  Extent document(int64_t document) const;
  int64_t document_length(int64_t document) const { return this->document(document).length(); }
  /// Fills `lengths` with the lengths of the documents from `first`, with the same checks as document_length() and at
  /// lower cost.
  void read_document_lengths(int64_t first, std::span<int64_t> lengths) const;
  /// Position in the .bin, in tokens, of a document's first token; document = num_documents() gives the end.
  int64_t document_begin(int64_t document) const { return sequence_begin(document_sequence(document)); }

  int64_t sequence_length(int64_t sequence) const;  ///< tokens; 0 <= sequence < num_sequences()
  /// The first sequence of a document; document = num_documents() gives num_sequences().
  int64_t document_sequence(int64_t document) const;
  /// The contents of the .idx and the .bin.
  std::span<const uint8_t> index_bytes() const { return index_.bytes(); }
  std::span<const uint8_t> token_bytes() const { return tokens_.bytes(); }

  /// The document that contains token `position` of the .bin (0 <= position < num_tokens()).
  int64_t document_at(int64_t position) const;

  /// Copies tokens [begin, begin + count) of the .bin to `out`. If vocab_size > 0, a token outside [0, vocab_size) is a
  /// UserError that names the dataset, the document, the token and its value.
  void read(int64_t begin, int64_t count, int32_t* out, int64_t vocab_size = 0) const;

 private:
  void check_header();
  void check_ends() const;
  void check_sequences() const;
  /// Position in the .bin, in tokens, of a sequence's first token; sequence = num_sequences() gives the end.
  int64_t sequence_begin(int64_t sequence) const;
  void check_sequence(int64_t sequence) const;
  [[noreturn]] void bad_document(int64_t document, int64_t sequence) const;
  template <class Stored>
  void read_as(int64_t begin, int64_t count, int32_t* out, int64_t limit) const;
  [[noreturn]] void bad_token(int64_t position, int64_t value, int64_t limit) const;

  std::string prefix_;
  MappedFile index_;
  MappedFile tokens_;
  TokenType type_ = TokenType::kU16;
  int size_shift_ = 0;  // a token has 1 << size_shift_ bytes
  int64_t num_sequences_ = 0;
  int64_t num_documents_ = 0;
  int64_t num_tokens_ = 0;
  const uint8_t* lengths_ = nullptr;    // i32, not aligned: the header has 34 bytes
  const uint8_t* pointers_ = nullptr;   // i64, not aligned
  const uint8_t* documents_ = nullptr;  // i64, not aligned
};

/// Writer. Writes tokens to PREFIX.bin.tmp; finish() syncs both files and renames them, .bin first, so that an
/// interrupted run leaves no incomplete dataset. The destructor removes the temporary files if finish() was not called.
/// finish() also replaces or removes the record (dataset_record.h) of an earlier dataset with the same prefix.
class IndexedDatasetWriter {
 public:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  using OpenFile = std::unique_ptr<std::FILE, Close>;

  /// Creates the folder of the prefix. Integer types only. UserError while another writer, of this or another process,
  /// has the same prefix.
  IndexedDatasetWriter(std::string prefix, TokenType type);
  ~IndexedDatasetWriter();
  IndexedDatasetWriter(const IndexedDatasetWriter&) = delete;
  IndexedDatasetWriter& operator=(const IndexedDatasetWriter&) = delete;

  /// Appends tokens to the current document; can be called several times per document. TE_CHECK that every value fits
  /// the token type.
  void append(std::span<const int32_t> tokens);
  void end_document();
  void add_document(std::span<const int32_t> tokens) {
    append(tokens);
    end_document();
  }

  /// Appends all documents of a dataset with the same token type; calls on_bytes(n) after every n bytes.
  void append_dataset(const IndexedDataset& dataset, const std::function<void(int64_t bytes)>& on_bytes);

  /// Makes finish() write a record of the dataset. `largest_token`: the largest token of the datasets passed to
  /// append_dataset(), which does not examine tokens.
  void describe(TokenizerRecord tokenizer, int64_t largest_token = -1);

  TokenType token_type() const { return type_; }
  int64_t num_documents() const { return static_cast<int64_t>(document_indices_.size()) - 1; }
  int64_t num_tokens() const { return num_tokens_; }

  /// Ends the current document if it has tokens, and renames the files to their final names.
  void finish() {
    complete();
    publish();
  }
  /// The two steps of finish(), for several datasets of which all or none should be written: complete() does all that
  /// can fail for lack of space, publish() renames the files.
  void complete();
  void publish();

 private:
  void end_sequence();
  void write_tokens(std::span<const int32_t> tokens);
  void write_index();
  void write_record();
  void remove_temporary_files() const;

  std::string prefix_;
  TokenType type_;
  OpenFile index_file_;  // locked until the files have their final names
  OpenFile file_;
  bool completed_ = false, published_ = false;
  int64_t num_tokens_ = 0;
  int64_t largest_token_ = -1;
  std::optional<TokenizerRecord> tokenizer_;
  int64_t sequence_tokens_ = 0;  // tokens of the current sequence so far
  std::vector<int32_t> lengths_;
  std::vector<int64_t> document_indices_{0};
  std::vector<uint8_t> buffer_;
};

}  // namespace te::data
