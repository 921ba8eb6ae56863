// Decoders of tokenizer.json: convert the names of tokens to text.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "text/tokenizers/json_reader.h"
#include "text/tokenizers/pattern.h"

namespace te::text {

class Decoder {
 public:
  /// `json`: the value of "decoder": null (joins tokens with spaces), ByteLevel, Sequence, Replace, ByteFallback, Fuse,
  /// Strip, Metaspace, WordPiece, BPEDecoder. UserError for others.
  explicit Decoder(const JsonReader& json);
  static Decoder byte_level();

  /// The text of the tokens. Invalid UTF-8 bytes are kept, whereas Hugging Face replaces them by U+FFFD.
  std::string decode(std::vector<std::string> tokens) const;

 private:
  enum class Kind { kByteLevel, kReplace, kByteFallback, kFuse, kStrip, kMetaspace, kWordPiece, kBpe };
  struct Step {
    Kind kind;
    // Replace: `text` is replaced by `content`. In `text`, Strip and Metaspace: the character; WordPiece: the prefix;
    // BPEDecoder: the suffix.
    std::string text, content;
    int64_t start = 0, stop = 0;             // Strip
    bool keep_first = false;                 // Metaspace: keep a space at the beginning of the text
    bool cleanup = false;                    // WordPiece
    std::shared_ptr<const Pattern> pattern;  // Replace: instead of `text`
  };
  Decoder() = default;
  void add_part(const std::string& type, const JsonReader& json);
  /// `limit`: limit for the bytes that Replace produces from all tokens.
  static void apply(const Step& step, size_t limit, std::vector<std::string>& tokens);

  std::vector<Step> steps_;
};

}  // namespace te::text
