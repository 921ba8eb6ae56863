// SentencePiece models (tokenizer.model), through libsentencepiece; texts of plain BPE models are encoded by a
// PipelineTokenizer (sentencepiece_bpe.h), to the same tokens.
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

/// Encodes as SentencePiece does: control symbols such as `</s>` in a text are text, whatever SpecialTokens says,
/// unless the files next to the model make added tokens of them; user-defined symbols are matched. Every byte that is
/// no UTF-8 becomes U+FFFD. decode() shows control symbols and added tokens by name; what follows one begins without a
/// space.
class SentencePieceTokenizer : public Tokenizer {
 public:
  /// `model`: the file's bytes. UserError "tokenizer NAME: ..." when it is damaged, or the settings add tokens to a
  /// model that is no plain BPE.
  SentencePieceTokenizer(const std::string& model, const std::string& name,
                         const TokenizerSettings& settings = {});
  ~SentencePieceTokenizer() override;

  /// Whether a PipelineTokenizer encodes.
  bool is_plain_bpe() const { return bpe_ != nullptr; }

  /// The model's own </s> and <s>, where it has them.
  std::optional<int32_t> model_end() const;
  std::optional<int32_t> model_begin() const;

  /// The two ids of the interface; to be called before use.
  void set_document_tokens(int32_t end, std::optional<int32_t> begin);

  std::string decode(std::span<const int32_t> tokens) const override;
  int64_t vocab_size() const override;
  int32_t end_of_document() const override { return end_of_document_; }
  std::optional<int32_t> begin_of_document() const override { return begin_of_document_; }
  std::string name() const override { return name_; }
  std::optional<int32_t> find_token(std::string_view token) const override;
  /// Likewise for a control symbol alone.
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
