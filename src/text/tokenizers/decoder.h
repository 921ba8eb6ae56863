// Decoders of tokenizer.json: from the names of tokens to a text.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizers/json_reader.h"
#include "text/tokenizers/pattern.h"

namespace te::text {

class Decoder {
 public:
  /// The value of "decoder": null (tokens with a space between them), ByteLevel, Sequence, Replace, ByteFallback,
  /// Fuse, Strip, Metaspace, WordPiece, BPEDecoder. UserError for others.
  explicit Decoder(const JsonReader& json);
  static Decoder byte_level();

  /// The text that the tokens make. Bytes that are no UTF-8 stay as they are, where Hugging Face puts U+FFFD.
  std::string decode(std::vector<std::string> tokens) const;

 private:
  enum class Kind { kByteLevel, kReplace, kByteFallback, kFuse, kStrip, kMetaspace, kWordPiece, kBpe };
  struct Step {
    Kind kind;
    std::string text,
        content;  // Replace: what by what; Strip and Metaspace: text; WordPiece: prefix; BPE: suffix
    int64_t start = 0, stop = 0;             // Strip
    bool keep_first = false;                 // Metaspace: a space at the beginning was in the text
    bool cleanup = false;                    // WordPiece
    std::shared_ptr<const Pattern> pattern;  // Replace: instead of `text`
  };
  Decoder() = default;
  void add(const JsonReader& json, int depth);
  void add_part(const std::string& type, const JsonReader& json);
  /// `most`: bytes that Replace may make of all tokens.
  static void apply(const Step& step, size_t most, std::vector<std::string>& tokens);

  std::vector<Step> steps_;
};

}  // namespace te::text
