#include "text/tokenizers/wordpiece_model.h"

#include "core/error.h"
#include "text/tokenizers/normalizer_step.h"
#include "text/tokenizers/utf8.h"

namespace te::text {

namespace {

/// The tokens that begin with `prefix`, with the prefix removed.
std::vector<std::pair<std::string_view, int32_t>> tokens_after(const Vocabulary& vocabulary,
                                                               std::string_view prefix) {
  std::vector<std::pair<std::string_view, int32_t>> result;
  for (const auto& [token, id] : vocabulary.ids()) {
    if (token.size() > prefix.size() && token.starts_with(prefix)) {
      result.emplace_back(token.substr(prefix.size()), id);
    }
  }
  return result;
}

int32_t find_unk(const Vocabulary& vocabulary, const std::string& token, const std::string& where) {
  const auto id = vocabulary.find(token);
  if (!id) user_error("{}: model.unk_token {} is not in the vocabulary; add it", where, shown(token));
  return *id;
}

}  // namespace

WordPieceModel::WordPieceModel(const WordPieceSpec& spec, const std::string& where)
    : TokenModel(spec.vocab, where),
      first_(tokens_after(vocabulary_, "")),
      inside_(tokens_after(vocabulary_, spec.prefix)),
      unk_(find_unk(vocabulary_, spec.unk_token, where)),
      max_characters_(spec.max_characters) {}

void WordPieceModel::encode(std::string_view word, ModelWorkspace& workspace,
                            std::vector<int32_t>& tokens) const {
  workspace.cache.encode(word, tokens, [&](std::string_view text) { encode_uncached(text, tokens); });
}

void WordPieceModel::encode_uncached(std::string_view word, std::vector<int32_t>& tokens) const {
  int64_t characters = 0;
  for_each_character(word, [&](uint32_t, std::string_view) { ++characters; });
  const size_t start = tokens.size();
  bool good = characters <= max_characters_;
  for (size_t at = 0; good && at < word.size();) {
    size_t longest = 0;
    int32_t id = -1;
    (at == 0 ? first_ : inside_).for_each_prefix(word.substr(at), [&](size_t length, int32_t token) {
      longest = length;
      id = token;
    });
    good = longest > 0;
    if (good) tokens.push_back(id);
    at += longest;
  }
  if (good) return;
  tokens.resize(start);
  tokens.push_back(unk_);
}

WordLevelModel::WordLevelModel(const WordLevelSpec& spec, const std::string& where)
    : TokenModel(spec.vocab, where), unk_(find_unk(vocabulary_, spec.unk_token, where)) {}

void WordLevelModel::encode(std::string_view word, ModelWorkspace& /*workspace*/,
                            std::vector<int32_t>& tokens) const {
  tokens.push_back(vocabulary_.find(word).value_or(unk_));
}

}  // namespace te::text
