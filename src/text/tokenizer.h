// Tokenizers turn text into token ids and back. They live in text/tokenizers; make_tokenizer() knows them all.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace te::text {

/// What happens to special tokens (such as `<|endoftext|>`) that are written out in a text.
enum class SpecialTokens {
  kMatch,   ///< they become their token, as in Hugging Face's encode(text, add_special_tokens=False)
  kAsText,  ///< they are text like any other; right for text from strangers
};

/// All const members may be called by several threads at once.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Appends the tokens of `text` to `tokens`; adds no token of its own before or after. `text` is UTF-8, but any
  /// bytes are accepted. Broken UTF-8: `bytes` and tokenizers with a token per byte (byte-level BPE, byte
  /// fallback) keep the bytes, so that decode gives them back; a maximal run of bytes that are no UTF-8 is
  /// encoded apart from what surrounds it. SentencePiece replaces each of those bytes by U+FFFD.
  void encode(std::string_view text, std::vector<int32_t>& tokens,
              SpecialTokens special = SpecialTokens::kMatch) const {
    encode_text(text, tokens, special);
  }

  /// The text of the tokens; special tokens show as their name. A token outside [0, vocab_size()) is a
  /// UserError; an id inside that no token has (some vocabularies have holes) gives nothing.
  virtual std::string decode(std::span<const int32_t> tokens) const = 0;

  virtual int64_t vocab_size() const = 0;       ///< the largest id + 1
  virtual int32_t end_of_document() const = 0;  ///< id of the token that te-data writes after every document
  virtual std::optional<int32_t> begin_of_document() const {
    return {};
  }                                      ///< where the model was trained with one
  virtual std::string name() const = 0;  ///< the spec that makes this tokenizer

  /// The id of a token by its name, such as `<|im_start|>`; none where the vocabulary lacks it.
  virtual std::optional<int32_t> find_token(std::string_view token) const = 0;

 private:
  virtual void encode_text(std::string_view text, std::vector<int32_t>& tokens,
                           SpecialTokens special) const = 0;
};

/// spec: `bytes` (256 byte values and an end-of-document token, vocab_size 257), or a path:
///   tokenizer.json                       of Hugging Face (GPT-2, GPT-NeoX, Llama-2, Llama-3, Qwen3, BERT, ...)
///   vocab.json and merges.txt            of GPT-2, also as encoder.json and vocab.bpe; either file may be named
///   tokenizer.model                      of SentencePiece
///   a folder                             the first of these that it has, in this order
/// The files next to it count as in transformers' AutoTokenizer: tokenizer_config.json (added_tokens_decoder, special
/// tokens), special_tokens_map.json, added_tokens.json. The end-of-document token is the eos_token that they name, else
/// that of the tokenizer's class, the eos_token_id of generation_config.json, the model's own, or a special token of
/// known name. The begin-of-document token is the bos_token; none where it is null or a tokenizer_config.json lacks it.
/// UserError with one line for what is missing, malformed or not supported.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& spec);

/// The folder in which a tokenizer's files lie; empty for `bytes` and an empty spec.
std::filesystem::path tokenizer_folder(const std::string& spec);

}  // namespace te::text
