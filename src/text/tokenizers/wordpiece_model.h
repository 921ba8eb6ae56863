// WordPiece splits a word from the left into the longest tokens; WordLevel has one token per word. Definitions: Hugging
// Face tokenizers, models/wordpiece and models/wordlevel.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/tokenizers/token_model.h"
#include "text/tokenizers/token_trie.h"

namespace te::text {

struct WordPieceSpec {
  using Model = class WordPieceModel;
  std::vector<std::pair<std::string, int64_t>> vocab;  ///< token, id
  std::string unk_token;                               ///< for words that cannot be split into tokens
  std::string prefix;                                  ///< of tokens inside a word, such as ##
  int64_t max_characters = 0;                          ///< longer words become the unknown token
};

struct WordLevelSpec {
  using Model = class WordLevelModel;
  std::vector<std::pair<std::string, int64_t>> vocab;  ///< token, id
  std::string unk_token;
};

class WordPieceModel : public TokenModel {
 public:
  /// UserError "WHERE: ..." for an unk_token that the vocabulary lacks.
  WordPieceModel(const WordPieceSpec& spec, const std::string& where);
  void encode(std::string_view word, ModelWorkspace& workspace, std::vector<int32_t>& tokens) const override;

 private:
  void encode_uncached(std::string_view word, std::vector<int32_t>& tokens) const;

  TokenTrie first_, inside_;
  int32_t unk_;
  int64_t max_characters_;
};

class WordLevelModel : public TokenModel {
 public:
  /// UserError "WHERE: ..." for an unk_token that the vocabulary lacks.
  WordLevelModel(const WordLevelSpec& spec, const std::string& where);
  void encode(std::string_view word, ModelWorkspace& workspace, std::vector<int32_t>& tokens) const override;

 private:
  int32_t unk_;
};

}  // namespace te::text
