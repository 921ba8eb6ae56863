// Encoding of a word: splits it where no merge applies, looks the parts up in the cache, else merges.
#include <algorithm>
#include <functional>
#include <limits>

#include "core/error.h"
#include "core/log.h"
#include "text/tokenizers/bpe_hash.h"
#include "text/tokenizers/bpe_model.h"
#include "text/tokenizers/utf8.h"

namespace te::text {

inline const BpeModel::Merge* BpeModel::find_merge(int32_t left, int32_t right) const {
  const uint64_t pair = pair_key(left, right);
  uint64_t slot = hash_key(pair) & merge_mask_;
  while (merges_[slot].rank != kNoRank) {
    if (merges_[slot].pair == pair) return &merges_[slot];
    slot = (slot + 1) & merge_mask_;
  }
  return nullptr;
}

inline bool BpeModel::may_merge(uint32_t left, uint32_t right) const {
  const uint32_t near_left = near_character(left), near_right = near_character(right);
  if (near_left < kNearCharacters && near_right < kNearCharacters) {
    return near_pairs_[near_left * kNearCharacters + near_right];
  }
  const uint64_t key = uint64_t{left} << 32 | right, mask = far_pairs_.size() - 1;
  uint64_t slot = hash_key(key) & mask;
  while (far_pairs_[slot] != 0 && far_pairs_[slot] != key) slot = (slot + 1) & mask;
  return far_pairs_[slot] == key;
}

void BpeModel::encode(std::string_view word, ModelWorkspace& workspace, std::vector<int32_t>& tokens) const {
  if (!separable_) return encode_part(word, workspace, tokens);
  constexpr uint32_t kNone = 0xFFFFFFFF;  // merges with nothing
  uint32_t left = kNone;
  size_t begin = 0, at = 0;
  while (at < word.size()) {
    uint32_t right = static_cast<uint8_t>(word[at]);
    size_t length = 1;
    if (right >= 0x80) {
      length = utf8_sequence_length(word.substr(at));
      right = length == 0 ? kNone : utf8_code_point(word.substr(at, length));
      length = std::max<size_t>(length, 1);
    }
    if (at > begin && (left == kNone || right == kNone || !may_merge(left, right))) {
      encode_part(word.substr(begin, at - begin), workspace, tokens);
      begin = at;
    }
    left = right;
    at += length;
  }
  encode_part(word.substr(begin), workspace, tokens);
}

void BpeModel::encode_part(std::string_view word, ModelWorkspace& workspace,
                           std::vector<int32_t>& tokens) const {
  if (word.empty()) return;
  workspace.cache.encode(word, tokens,
                         [&](std::string_view text) { encode_uncached(text, workspace, tokens); });
}

void BpeModel::encode_uncached(std::string_view word, ModelWorkspace& workspace,
                               std::vector<int32_t>& tokens) const {
  if (ignore_merges_) {
    if (byte_level_) {
      if (const auto found = words_.find(word); found != words_.end()) return tokens.push_back(found->second);
    } else if (const auto id = vocabulary_.find(word)) {
      return tokens.push_back(*id);
    }
  }
  if (word.size() >= static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    user_error("a word of {} bytes is too long to encode; split the text into documents", word.size());
  }
  std::vector<Symbol>& symbols = workspace.symbols;
  make_symbols(word, symbols);
  if (symbols.empty()) return;
  symbols.back().next = -1;
  for (size_t i = 0; i < symbols.size(); ++i) rank_pair(symbols, static_cast<int32_t>(i));
  constexpr size_t kShort =
      40;  // for shorter words, scanning all pairs after every merge is faster than a heap
  if (symbols.size() <= kShort) {
    merge_short(symbols);
  } else {
    merge_long(symbols, workspace.heap);
  }
  for (int32_t i = 0; i >= 0; i = symbols[static_cast<size_t>(i)].next) {
    tokens.push_back(symbols[static_cast<size_t>(i)].id);
  }
  constexpr size_t kKeep = size_t{1} << 16;
  if (symbols.capacity() > kKeep) {  // release the memory of a huge word
    symbols = {};
    workspace.heap = {};
  }
}

int32_t BpeModel::character_id(std::string_view character) const {
  const uint32_t code_point = utf8_code_point(character);
  if (code_point < characters_.size()) return characters_[code_point];
  const auto found = rare_characters_.find(code_point);
  return found == rare_characters_.end() ? -1 : found->second;
}

void BpeModel::make_symbols(std::string_view word, std::vector<Symbol>& symbols) const {
  symbols.clear();
  const auto add = [&symbols](int32_t id) {
    const auto at = static_cast<int32_t>(symbols.size());
    symbols.push_back({id, at - 1, at + 1, kNoRank, -1});
  };
  bool unknown = false;  // an unknown token is pending; it may be fused with the next one
  const auto add_unknown = [&] {
    if (unknown && !fuse_unk_) add(unk_);
    unknown = true;
  };
  const auto add_known = [&](int32_t id) {
    if (unknown) add(unk_);
    unknown = false;
    add(id);
  };
  while (!word.empty()) {
    size_t length = byte_level_ ? 1 : utf8_sequence_length(word);
    int32_t id = -1;
    if (byte_level_) {
      id = byte_ids_[static_cast<uint8_t>(word[0])];
    } else if (length > 0) {
      id = character_id(word.substr(0, length));
    }
    length = std::max<size_t>(length, 1);  // an invalid byte counts as one character
    const std::string_view bytes = word.substr(0, length);
    word.remove_prefix(length);
    if (id >= 0) {
      add_known(id);
    } else if (!byte_level_ && byte_fallback_ && std::ranges::all_of(bytes, [this](char c) {
                 return byte_ids_[static_cast<uint8_t>(c)] >= 0;
               })) {
      // Like the reference, keep a pending unknown token pending here.
      for (const char c : bytes) add(byte_ids_[static_cast<uint8_t>(c)]);
    } else if (unk_ >= 0) {
      add_unknown();
    } else {
      warn_of_loss(bytes);
    }
  }
  if (unknown) add(unk_);
}

/// Warns once about text without a token in a vocabulary without unk_token. The reference drops such text silently.
void BpeModel::warn_of_loss(std::string_view lost) const {
  if (warned_.exchange(true)) return;
  log_warning(
      "{}: {} is not in the vocabulary, which has no unk_token, and is dropped wherever it occurs (this "
      "warning is shown once)",
      where_, byte_level_ ? fmt::format("the byte {:02X}", static_cast<uint8_t>(lost[0])) : shown(lost));
}

/// Updates the merge of the symbol with its successor.
inline void BpeModel::rank_pair(std::vector<Symbol>& symbols, int32_t at) const {
  Symbol& symbol = symbols[static_cast<size_t>(at)];
  const Merge* merge =
      symbol.next < 0 ? nullptr : find_merge(symbol.id, symbols[static_cast<size_t>(symbol.next)].id);
  symbol.rank = merge == nullptr ? kNoRank : merge->rank;
  symbol.merged = merge == nullptr ? -1 : merge->id;
}

/// Merges the symbol with its successor.
inline void BpeModel::merge_at(std::vector<Symbol>& symbols, int32_t at) const {
  Symbol& symbol = symbols[static_cast<size_t>(at)];
  Symbol& gone = symbols[static_cast<size_t>(symbol.next)];
  symbol.id = symbol.merged;
  symbol.next = gone.next;
  gone.rank = kNoRank;
  if (symbol.next >= 0) symbols[static_cast<size_t>(symbol.next)].previous = at;
  rank_pair(symbols, at);
  if (symbol.previous >= 0) rank_pair(symbols, symbol.previous);
}

void BpeModel::merge_short(std::vector<Symbol>& symbols) const {
  while (true) {
    int32_t best = -1;
    uint32_t rank = kNoRank;
    for (int32_t i = 0; i >= 0; i = symbols[static_cast<size_t>(i)].next) {
      const Symbol& symbol = symbols[static_cast<size_t>(i)];
      if (symbol.rank < rank) {
        rank = symbol.rank;
        best = i;
      }
    }
    if (best < 0) return;
    merge_at(symbols, best);
  }
}

void BpeModel::merge_long(std::vector<Symbol>& symbols, std::vector<uint64_t>& heap) const {
  // An entry is (rank, position) in one number, so equal ranks are merged from left to right. An entry is stale if the
  // rank of its symbol has changed.
  heap.clear();
  const auto entry = [&symbols](int32_t at) {
    return uint64_t{symbols[static_cast<size_t>(at)].rank} << 32 | static_cast<uint32_t>(at);
  };
  for (size_t i = 0; i < symbols.size(); ++i) {
    if (symbols[i].rank != kNoRank) heap.push_back(entry(static_cast<int32_t>(i)));
  }
  std::ranges::make_heap(heap, std::greater<>());
  const auto push = [&](int32_t at) {
    if (at < 0 || symbols[static_cast<size_t>(at)].rank == kNoRank) return;
    heap.push_back(entry(at));
    std::ranges::push_heap(heap, std::greater<>());
  };
  while (!heap.empty()) {
    std::ranges::pop_heap(heap, std::greater<>());
    const uint64_t top = heap.back();
    heap.pop_back();
    const auto at = static_cast<int32_t>(top & 0xFFFFFFFF);
    if (symbols[static_cast<size_t>(at)].rank != top >> 32) continue;
    merge_at(symbols, at);
    push(at);
    push(symbols[static_cast<size_t>(at)].previous);
  }
}

}  // namespace te::text
