// Tokenizers as Hugging Face's tokenizer.json describes them: added tokens, normalizer, pre-tokenizer, model, decoder.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "text/tokenizer.h"
#include "text/tokenizers/added_tokens.h"
#include "text/tokenizers/bpe_model.h"
#include "text/tokenizers/decoder.h"
#include "text/tokenizers/normalizer.h"
#include "text/tokenizers/pre_tokenizer.h"
#include "text/tokenizers/token_model.h"
#include "text/tokenizers/unigram_model.h"
#include "text/tokenizers/wordpiece_model.h"

namespace te::text {

using ModelSpec = std::variant<BpeSpec, UnigramSpec, WordPieceSpec, WordLevelSpec>;

/// The parts of a tokenizer, before they are put together.
struct PipelineSpec {
  ModelSpec model;
  std::vector<AddedToken> added_tokens;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  Decoder decoder;
};

class PipelineTokenizer : public Tokenizer {
 public:
  /// `name`: the spec that make_tokenizer() was given. UserError "tokenizer NAME: ..." for parts that do not fit.
  PipelineTokenizer(PipelineSpec spec, const std::string& name);
  ~PipelineTokenizer() override;

  /// The two ids of the interface; to be called before use.
  void set_document_tokens(int32_t end, std::optional<int32_t> begin);

  std::string decode(std::span<const int32_t> tokens) const override;
  int64_t vocab_size() const override { return vocab_size_; }
  int32_t end_of_document() const override { return end_of_document_; }
  std::optional<int32_t> begin_of_document() const override { return begin_of_document_; }
  std::string name() const override { return name_; }
  std::optional<int32_t> find_token(std::string_view token) const override;
  /// Likewise for a special added token alone.
  std::optional<int32_t> find_special(std::string_view token) const;

 private:
  struct Workspace;
  class WorkspaceLoan;

  void encode_text(std::string_view text, std::vector<int32_t>& tokens, SpecialTokens special) const override;
  void encode_piece(const PreTokenizer::Piece& piece, SpecialTokens special, Workspace& workspace,
                    std::vector<int32_t>& tokens) const;
  void add_tokens(std::vector<AddedToken> added_tokens, const std::string& where);
  /// The id of an added token, where the vocabulary's next free one is `next_id`. UserError when they do not agree.
  int32_t choose_id(const AddedToken& token, int64_t& next_id, const std::string& where) const;

  std::string name_;
  std::unique_ptr<const TokenModel> model_;
  const Vocabulary& vocabulary_;  // of the model
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  Decoder decoder_;
  std::vector<AddedToken> added_tokens_;
  std::vector<std::string> added_names_;  // as they are decoded
  std::unordered_map<int32_t, size_t> added_by_id_;
  std::unordered_map<std::string_view, int32_t> added_ids_;
  AddedTokenFinder raw_finder_, normalized_finder_;
  int64_t vocab_size_ = 0;
  int32_t end_of_document_ = -1;
  std::optional<int32_t> begin_of_document_;

  // One for each thread that encodes at the same time; made when needed, kept for the next call.
  mutable std::mutex workspaces_mutex_;
  mutable std::vector<std::unique_ptr<Workspace>> workspaces_;
};

}  // namespace te::text
