#include "text/tokenizers/unigram_model.h"

#include <algorithm>
#include <limits>

#include "core/error.h"
#include "text/tokenizers/utf8.h"

namespace te::text {

namespace {

std::vector<std::pair<std::string, int64_t>> with_ids(const UnigramSpec& spec) {
  std::vector<std::pair<std::string, int64_t>> result;
  result.reserve(spec.vocab.size());
  for (size_t id = 0; id < spec.vocab.size(); ++id) result.emplace_back(spec.vocab[id].first, id);
  return result;
}

std::vector<std::pair<std::string_view, int32_t>> trie_tokens(const Vocabulary& vocabulary) {
  std::vector<std::pair<std::string_view, int32_t>> result;
  result.reserve(vocabulary.num_tokens());
  for (const auto& [token, id] : vocabulary.ids()) {
    if (!token.empty()) result.emplace_back(token, id);
  }
  return result;
}

}  // namespace

UnigramModel::UnigramModel(const UnigramSpec& spec, const std::string& where)
    : TokenModel(with_ids(spec), where), where_(where), trie_(trie_tokens(vocabulary_)) {
  if (spec.unk_id) {
    if (*spec.unk_id < 0 || *spec.unk_id >= vocabulary_.num_ids()) {
      user_error("{}: model.unk_id {} must be below the {} tokens of the vocabulary", where, *spec.unk_id,
                 vocabulary_.num_ids());
    }
    unk_ = static_cast<int32_t>(*spec.unk_id);
  }
  double lowest = std::numeric_limits<double>::infinity();
  for (const auto& entry : spec.vocab) {
    scores_.push_back(entry.second);
    lowest = std::min(lowest, entry.second);
  }
  constexpr double kUnknownPenalty = 10.0;
  unk_score_ = lowest - kUnknownPenalty;
  byte_ids_.fill(-1);
  if (!spec.byte_fallback) return;
  for (size_t byte = 0; byte < byte_ids_.size(); ++byte) {
    byte_ids_[byte] = vocabulary_.find(fmt::format("<0x{:02X}>", byte)).value_or(-1);
  }
}

void UnigramModel::encode(std::string_view word, ModelWorkspace& workspace,
                          std::vector<int32_t>& tokens) const {
  workspace.cache.encode(word, tokens,
                         [&](std::string_view text) { encode_uncached(text, workspace.nodes, tokens); });
}

/// Finds the best path to the end of every character of the word. For equal scores, the token that begins first wins.
void UnigramModel::find_path(std::string_view word, std::vector<ModelWorkspace::Node>& nodes) const {
  nodes.assign(word.size() + 1, {0.0, -1, 0});
  for (size_t at = 0; at < word.size();) {
    const double before = nodes[at].score;
    const auto offer = [&](size_t length, int32_t id, double score) {
      ModelWorkspace::Node& target = nodes[at + length];
      if (target.id < 0 || score > target.score) target = {score, id, static_cast<uint32_t>(at)};
    };
    // An invalid byte counts as a character.
    const size_t character = std::max<size_t>(utf8_sequence_length(word.substr(at)), 1);
    bool known = false;
    trie_.for_each_prefix(word.substr(at), [&](size_t length, int32_t id) {
      offer(length, id, scores_[static_cast<size_t>(id)] + before);
      known = known || length == character;
    });
    if (!known) {
      if (unk_ < 0) {
        user_error("{}: the character {} is not in the vocabulary, and model.unk_id is not set", where_,
                   shown(word.substr(at, character)));
      }
      offer(character, unk_, unk_score_ + before);
    }
    at += character;
  }
}

void UnigramModel::encode_uncached(std::string_view word, std::vector<ModelWorkspace::Node>& nodes,
                                   std::vector<int32_t>& tokens) const {
  if (word.size() >= std::numeric_limits<uint32_t>::max()) {
    user_error("a word of {} bytes is too long to encode; split the text into documents", word.size());
  }
  find_path(word, nodes);
  // Reverse the path: `from` becomes the end of the token.
  uint32_t end = static_cast<uint32_t>(word.size()), after = end;
  while (end > 0) {
    const uint32_t begin = nodes[end].from;
    nodes[end].from = after;
    after = end;
    end = begin;
  }
  // `after` is the end of the first token.
  size_t begin = 0, unknown = 0;
  bool waits = false;  // unknown text is pending from `unknown`; adjacent unknown tokens are joined
  for (uint32_t at = after; begin < word.size(); at = nodes[at].from) {
    const bool is_unknown = nodes[at].id == unk_;
    if (is_unknown && !waits) unknown = begin;
    if (!is_unknown) {
      if (waits) add_unknown(word.substr(unknown, begin - unknown), tokens);
      tokens.push_back(nodes[at].id);
    }
    waits = is_unknown;
    begin = at;
  }
  if (waits) add_unknown(word.substr(unknown), tokens);
  constexpr size_t kKeep = size_t{1} << 16;
  if (nodes.capacity() > kKeep) nodes = {};  // release the memory of a huge word
}

void UnigramModel::add_unknown(std::string_view text, std::vector<int32_t>& tokens) const {
  if (const auto id = vocabulary_.find(text)) return tokens.push_back(*id);
  const bool all =
      std::ranges::all_of(text, [this](char c) { return byte_ids_[static_cast<uint8_t>(c)] >= 0; });
  if (!all) return tokens.push_back(unk_);
  for (const char c : text) tokens.push_back(byte_ids_[static_cast<uint8_t>(c)]);
}

}  // namespace te::text
