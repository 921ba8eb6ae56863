// Encodes documents on several threads: documents go in one after the other, their tokens come out in the same
// order, and memory stays bounded.
//
//   ParallelEncoder encoder(*tokenizer, {.threads = 8}, [&](std::span<const int32_t> tokens, int64_t tag) {
//     writer.add_document(tokens);
//   });
//   read_documents(path, options, [&](std::string_view text, int64_t bytes) { encoder.add(text, bytes); });
//   encoder.finish();
//
// One thread, the owner, calls all members; the sink is called on that thread, inside add() and finish(), so it
// needs no lock. Documents travel in batches of about 64 KiB (a longer document is a batch of its own), so the
// hand-over costs little per document.
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
  int threads = 0;  ///< that encode, besides the caller's; 0: as many as this process may use
  /// Text in flight. add() waits for the oldest batch when there is more; a single document that is larger
  /// passes alone. The tokens in flight come on top, at most 4 bytes per byte of text and 4 per document.
  int64_t max_bytes_in_flight = int64_t{64} << 20;
  SpecialTokens special = SpecialTokens::kMatch;
  bool end_of_document = false;  ///< append the tokenizer's end_of_document() to every document
};

class ParallelEncoder {
 public:
  /// The tokens of one document and the tag that add() was given with it.
  using Sink = std::function<void(std::span<const int32_t> tokens, int64_t tag)>;

  /// `tokenizer` must outlive this object. UserError unless threads is 0 to 1024.
  ParallelEncoder(const Tokenizer& tokenizer, const ParallelEncoderOptions& options, Sink sink);
  /// Without finish(), drops the documents that have not reached the sink.
  ~ParallelEncoder();
  ParallelEncoder(const ParallelEncoder&) = delete;
  ParallelEncoder& operator=(const ParallelEncoder&) = delete;

  /// Takes a document (copied) and passes what is ready to the sink. Throws what encoding an earlier document
  /// threw, when its turn comes (documents before it have reached the sink), and what the sink throws; after
  /// that only the destructor may be called.
  void add(std::string_view text, int64_t tag = 0);

  /// Waits for all documents and passes them to the sink. add() may be called again afterwards.
  void finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The tokens of all texts. threads as in ParallelEncoderOptions.
std::vector<std::vector<int32_t>> encode_batch(const Tokenizer& tokenizer, std::span<const std::string> texts,
                                               int threads = 0,
                                               SpecialTokens special = SpecialTokens::kMatch);

}  // namespace te::text
