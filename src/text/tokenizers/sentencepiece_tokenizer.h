// SentencePiece models (tokenizer.model), with libsentencepiece. Plain BPE models encode with a PipelineTokenizer
// (sentencepiece_bpe.h), which gives the same tokens.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "text/tokenizers/pipeline_tokenizer.h"
#include "text/tokenizers/tokenizer_settings.h"

namespace sentencepiece {
class SentencePieceProcessor;
}

namespace te::text {

/// Encodes like SentencePiece: control symbols such as `</s>` in a text are ordinary text for every SpecialTokens,
/// unless the files in the model's folder, or the class that they name, make them special; user-defined symbols are
/// matched. Every invalid UTF-8 byte becomes U+FFFD. decode() writes control symbols and added tokens by name; the text
/// after one begins without a space.
class SentencePieceTokenizer : public Tokenizer {
 public:
  /// `model`: the file's bytes; add_prefix_space false of the settings overrides its add_dummy_prefix. UserError
  /// "tokenizer NAME: ..." if it is damaged, or if the settings add tokens to a model that is not plain BPE.
  SentencePieceTokenizer(const std::string& model, const std::string& name,
                         const TokenizerSettings& settings = {});
  ~SentencePieceTokenizer() override;

  /// Whether a PipelineTokenizer does the encoding.
  bool is_plain_bpe() const { return bpe_ != nullptr; }

  /// The ids of the model's own </s> and <s>; nullopt if it lacks them.
  std::optional<int32_t> model_end() const;
  std::optional<int32_t> model_begin() const;

  /// Sets the end- and begin-of-document ids; must be called before use.
  void set_document_tokens(int32_t end, std::optional<int32_t> begin);

  std::string decode(std::span<const int32_t> tokens) const override;
  int64_t vocab_size() const override;
  int32_t end_of_document() const override { return end_of_document_; }
  std::optional<int32_t> begin_of_document() const override { return begin_of_document_; }
  std::string name() const override { return name_; }
  std::optional<int32_t> find_token(std::string_view token) const override;
  /// Likewise, but only for control symbols.
  std::optional<int32_t> find_special(std::string_view token) const;

 private:
  void encode_text(std::string_view text, std::vector<int32_t>& tokens, SpecialTokens special) const override;
  void encode_bpe(std::string_view text, std::vector<int32_t>& tokens, SpecialTokens special) const;

  std::string name_;
  std::unique_ptr<sentencepiece::SentencePieceProcessor> processor_;
  std::unique_ptr<PipelineTokenizer> bpe_;
  int32_t end_of_document_ = -1;
  std::optional<int32_t> begin_of_document_;
};

}  // namespace te::text
