// Encodes documents on several threads, in bounded memory; the tokens are delivered in the order of the documents.
//
//   ParallelEncoder encoder(*tokenizer, {.threads = 8}, [&](std::span<const int32_t> tokens, int64_t tag) {
//     writer.add_document(tokens);
//   });
//   read_documents(path, options, [&](std::string_view text, int64_t bytes) { encoder.add(text, bytes); });
//   encoder.finish();
//
// One thread, the owner, calls all members. The sink is called on that thread, inside add() and finish(), so it needs
// no lock. Documents are passed to the workers in batches of about 64 KiB (a longer document is its own batch), which
// amortizes the synchronization.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace te::text {

struct ParallelEncoderOptions {
  int threads = 0;  ///< encoding threads in addition to the caller's; 0: all that this process may use
  /// Limit for the text in flight: add() waits for the oldest batch while there is more. A larger document is encoded
  /// alone. The tokens in flight need additional memory, at most 4 bytes per byte of text and 4 bytes per document.
  int64_t max_bytes_in_flight = int64_t{64} << 20;
  SpecialTokens special = SpecialTokens::kMatch;
  bool end_of_document = false;  ///< append the tokenizer's end_of_document() to every document
};

class ParallelEncoder {
 public:
  /// Receives the tokens of one document and the tag that was passed to add().
  using Sink = std::function<void(std::span<const int32_t> tokens, int64_t tag)>;

  /// `tokenizer` must outlive this object. UserError unless threads is 0 to 1024.
  ParallelEncoder(const Tokenizer& tokenizer, const ParallelEncoderOptions& options, Sink sink);
  /// Without finish(), drops the documents that have not reached the sink.
  ~ParallelEncoder();
  ParallelEncoder(const ParallelEncoder&) = delete;
  ParallelEncoder& operator=(const ParallelEncoder&) = delete;

  /// Copies a document to the queue and passes finished documents to the sink. Rethrows an exception of encoding an
  /// earlier document once all documents before it have reached the sink, and passes on exceptions of the sink; after
  /// an exception only the destructor may be called.
  void add(std::string_view text, int64_t tag = 0);

  /// Waits for all documents and passes them to the sink. add() may be called again afterwards.
  void finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The tokens of each text. `threads`: see ParallelEncoderOptions.
std::vector<std::vector<int32_t>> encode_batch(const Tokenizer& tokenizer, std::span<const std::string> texts,
                                               int threads = 0,
                                               SpecialTokens special = SpecialTokens::kMatch);

}  // namespace te::text
