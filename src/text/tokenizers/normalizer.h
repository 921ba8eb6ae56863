// Normalizers of tokenizer.json: rewrite a text before it is split into words.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizers/json_reader.h"
#include "text/tokenizers/normalizer_step.h"
#include "text/tokenizers/pattern.h"

namespace te::text {

class Normalizer {
 public:
  /// `json`: the value of "normalizer": null, Sequence, NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Prepend,
  /// Replace, Nmt, BertNormalizer, ByteLevel, Precompiled. UserError for others.
  explicit Normalizer(const JsonReader& json);

  bool empty() const { return steps_.empty(); }

  /// Normalizes `text`, which can contain any bytes, in place; `spare` is a scratch buffer. Invalid UTF-8 bytes are
  /// kept.
  void apply(std::string& text, std::string& spare, PatternWorkspace& workspace) const;

  /// See NormalizerStep.
  bool keeps_start(std::string_view space) const;

 private:
  void add_part(const std::string& type, const JsonReader& json);
  std::vector<NormalizerStep> steps_;
};

}  // namespace te::text
