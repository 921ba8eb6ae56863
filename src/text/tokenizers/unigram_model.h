// Unigram: splits a word into the tokens whose scores have the largest sum.
// Definition: Hugging Face tokenizers, models/unigram.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/tokenizers/token_model.h"
#include "text/tokenizers/token_trie.h"

namespace te::text {

struct UnigramSpec {
  using Model = class UnigramModel;
  std::vector<std::pair<std::string, double>> vocab;  ///< token and score (a log probability), by id
  std::optional<int64_t> unk_id;
  bool byte_fallback = false;  ///< unknown text becomes the tokens `<0x00>` to `<0xFF>` of its bytes
};

class UnigramModel : public TokenModel {
 public:
  /// UserError "WHERE: ..." for duplicate tokens and for an unk_id that the vocabulary lacks.
  UnigramModel(const UnigramSpec& spec, const std::string& where);

  /// UserError for an unknown character if there is no unk_id.
  void encode(std::string_view word, ModelWorkspace& workspace, std::vector<int32_t>& tokens) const override;

 private:
  void encode_uncached(std::string_view word, std::vector<ModelWorkspace::Node>& nodes,
                       std::vector<int32_t>& tokens) const;
  void find_path(std::string_view word, std::vector<ModelWorkspace::Node>& nodes) const;
  void add_unknown(std::string_view text, std::vector<int32_t>& tokens) const;

  std::string where_;
  std::vector<double> scores_;  // by id
  TokenTrie trie_;
  double unk_score_ = 0;
  int32_t unk_ = -1;
  std::array<int32_t, 256> byte_ids_{};  // -1: none
};

}  // namespace te::text
