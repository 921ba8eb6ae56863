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

/// The parts from which a PipelineTokenizer is constructed.
struct PipelineSpec {
  ModelSpec model;
  std::vector<AddedToken> added_tokens;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  Decoder decoder;
};

class PipelineTokenizer : public Tokenizer {
 public:
  /// `name`: the spec that was passed to make_tokenizer(). UserError "tokenizer NAME: ..." if the parts are
  /// inconsistent.
  PipelineTokenizer(PipelineSpec spec, const std::string& name);
  ~PipelineTokenizer() override;

  /// Sets the end- and begin-of-document ids; must be called before use.
  void set_document_tokens(int32_t end, std::optional<int32_t> begin);

  std::string decode(std::span<const int32_t> tokens) const override;
  int64_t vocab_size() const override { return vocab_size_; }
  int32_t end_of_document() const override { return end_of_document_; }
  std::optional<int32_t> begin_of_document() const override { return begin_of_document_; }
  std::string name() const override { return name_; }
  std::optional<int32_t> find_token(std::string_view token) const override;
  /// Likewise, but only for special added tokens.
  std::optional<int32_t> find_special(std::string_view token) const;

 private:
  struct Workspace;
  class WorkspaceLoan;

  void encode_text(std::string_view text, std::vector<int32_t>& tokens, SpecialTokens special) const override;
  void encode_span(const PreTokenizer::Span& span, SpecialTokens special, Workspace& workspace,
                   std::vector<int32_t>& tokens) const;
  void add_tokens(std::vector<AddedToken> added_tokens, const std::string& where);
  /// The id of an added token; `next_id` is the next id that Hugging Face assigns. UserError if they are inconsistent.
  int32_t choose_id(const AddedToken& token, int64_t& next_id, const std::string& where) const;

  std::string name_;
  std::unique_ptr<const TokenModel> model_;
  const Vocabulary& vocabulary_;  // owned by the model
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  Decoder decoder_;
  std::vector<AddedToken> added_tokens_;
  std::vector<std::string> added_names_;  // the decoded texts of added_tokens_
  std::unordered_map<int32_t, size_t> added_by_id_;
  std::unordered_map<std::string_view, int32_t> added_ids_;
  AddedTokenFinder raw_finder_, normalized_finder_;
  int64_t vocab_size_ = 0;
  int32_t end_of_document_ = -1;
  std::optional<int32_t> begin_of_document_;

  // One per concurrently encoding thread, created on demand and reused.
  mutable std::mutex workspaces_mutex_;
  mutable std::vector<std::unique_ptr<Workspace>> workspaces_;
};

}  // namespace te::text
