// Tokenizers convert text to token ids and back. The implementations are in text/tokenizers; make_tokenizer() creates
// them.
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

/// How to encode the names of special tokens (such as `<|endoftext|>`) in a text.
enum class SpecialTokens {
  kMatch,   ///< as the special token, like Hugging Face's encode(text, add_special_tokens=False)
  kAsText,  ///< as ordinary text; use this for untrusted text
};

/// All const members are thread safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Appends the tokens of `text` to `tokens`, without begin- or end-of-document tokens. `text` should be UTF-8, but
  /// any bytes are accepted. Invalid UTF-8: `bytes` and tokenizers with a token for every byte (byte-level BPE, byte
  /// fallback) keep the bytes, so decode() returns them; a maximal run of invalid bytes is encoded separately from the
  /// surrounding text. SentencePiece replaces each invalid byte by U+FFFD.
  void encode(std::string_view text, std::vector<int32_t>& tokens,
              SpecialTokens special = SpecialTokens::kMatch) const {
    encode_text(text, tokens, special);
  }

  /// The text of the tokens, with special tokens as their names. UserError for a token outside [0, vocab_size()); an id
  /// that no token has (some vocabularies have gaps) gives no text.
  virtual std::string decode(std::span<const int32_t> tokens) const = 0;

  virtual int64_t vocab_size() const = 0;       ///< the largest id + 1
  virtual int32_t end_of_document() const = 0;  ///< id of the token that te-data writes after every document
  virtual std::optional<int32_t> begin_of_document() const {
    return {};
  }                                      ///< id of the BOS token; nullopt if the model is trained without one
  virtual std::string name() const = 0;  ///< the spec that was passed to make_tokenizer()

  /// The id of a token by its name, such as `<|im_start|>`; nullopt if the vocabulary lacks it.
  virtual std::optional<int32_t> find_token(std::string_view token) const = 0;

 private:
  virtual void encode_text(std::string_view text, std::vector<int32_t>& tokens,
                           SpecialTokens special) const = 0;
};

/// spec: `bytes` (256 byte values and an end-of-document token, vocab_size 257), or a path:
///   tokenizer.json                       of Hugging Face (GPT-2, GPT-NeoX, Llama-2, Llama-3, Qwen3, BERT, ...)
///   vocab.json and merges.txt            of GPT-2, also as encoder.json and vocab.bpe; either file may be named
///   tokenizer.model                      of SentencePiece
///   a folder                             the first of these files that it contains, in this order
/// The other files of the folder are used as in transformers' AutoTokenizer: tokenizer_config.json
/// (added_tokens_decoder, special tokens), special_tokens_map.json, added_tokens.json. The end-of-document token is the
/// eos_token that they name, else the eos_token of the tokenizer's class, the eos_token_id of generation_config.json,
/// the model's own, or a special token with a known name. The begin-of-document token is the bos_token; there is none
/// if it is null or missing in tokenizer_config.json. UserError, in one line, for files that are missing, malformed or
/// not supported.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& spec);

/// The folder of a tokenizer's files; empty for `bytes` and an empty spec.
std::filesystem::path tokenizer_folder(const std::string& spec);

}  // namespace te::text
