// Builds the vocabulary, the merges and their indices.
#include "text/tokenizers/bpe_model.h"

#include <algorithm>
#include <bit>

#include "core/error.h"
#include "text/tokenizers/bpe_hash.h"
#include "text/tokenizers/byte_level.h"
#include "text/tokenizers/utf8.h"

namespace te::text {

namespace {

/// Calls on_pair(left, right) for every pair of adjacent characters of a token.
template <class OnPair>
void for_each_pair(std::string_view token, OnPair on_pair) {
  uint32_t left = 0;
  for (bool first = true; !token.empty(); first = false) {
    const size_t length = utf8_sequence_length(token);
    TE_CHECK(length > 0, "a token that is not UTF-8 came out of JSON");
    const uint32_t right = utf8_code_point(token.substr(0, length));
    if (!first) on_pair(left, right);
    left = right;
    token.remove_prefix(length);
  }
}

}  // namespace

BpeModel::BpeModel(const BpeSpec& spec, const std::string& where)
    : TokenModel(spec.vocab, where),
      where_(where),
      byte_level_(spec.byte_level),
      byte_fallback_(spec.byte_fallback),
      fuse_unk_(spec.fuse_unk),
      ignore_merges_(spec.ignore_merges) {
  read_merges(spec, where);
  index_units(spec, where);
  index_pairs();
}

void BpeModel::read_merges(const BpeSpec& spec, const std::string& where) {
  merges_.assign(std::bit_ceil(2 * spec.merges.size() + 1), Merge{0, kNoRank, -1});
  merge_mask_ = merges_.size() - 1;
  std::string merged;
  for (size_t i = 0; i < spec.merges.size(); ++i) {
    const std::string &left = spec.merges[i].first,
                      &right = spec.merges[i].second;  // clang 14: no binding in a lambda
    merged = left + right;
    const auto id_of = [&](const std::string& token) {
      const auto id = vocabulary_.find(token);
      if (!id) {
        user_error("{}: merge {} ({} and {}) needs token {}, which the vocabulary lacks", where, i + 1,
                   shown(left), shown(right), shown(token));
      }
      return *id;
    };
    const int32_t left_id = id_of(left), right_id = id_of(right);
    const uint32_t rank = spec.ranks.empty() ? static_cast<uint32_t>(i) : spec.ranks[i];
    add_merge(pair_key(left_id, right_id), rank, id_of(merged));
  }
}

/// Adds a merge; it replaces an earlier merge of the same pair.
void BpeModel::add_merge(uint64_t pair, uint32_t rank, int32_t id) {
  uint64_t slot = hash_key(pair) & merge_mask_;
  while (merges_[slot].rank != kNoRank && merges_[slot].pair != pair) slot = (slot + 1) & merge_mask_;
  merges_[slot] = {pair, rank, id};
}

void BpeModel::index_units(const BpeSpec& spec, const std::string& where) {
  if (spec.unk_token) {
    const auto id = vocabulary_.find(*spec.unk_token);
    if (!id) {
      user_error("{}: model.unk_token {} is not in the vocabulary; add it or set it to null", where,
                 shown(*spec.unk_token));
    }
    unk_ = *id;
  }
  byte_ids_.fill(-1);
  for (uint32_t byte = 0; byte < 256; ++byte) {
    std::string unit;
    if (byte_level_) {
      append_utf8(byte_level_character(static_cast<uint8_t>(byte)), unit);
    } else if (byte_fallback_) {
      unit = fmt::format("<0x{:02X}>", byte);
    } else {
      continue;
    }
    byte_ids_[byte] = vocabulary_.find(unit).value_or(-1);
  }
  if (byte_level_ && ignore_merges_) {
    for (const auto& [token, id] : vocabulary_.ids()) {
      if (auto bytes = byte_level_bytes(token)) words_.emplace(std::move(*bytes), id);
    }
  }
  if (byte_level_) return;
  characters_.assign(0x10000, -1);
  for (const auto& [token, id] : vocabulary_.ids()) {
    if (token.empty() || utf8_sequence_length(token) != token.size()) continue;
    const uint32_t character = utf8_code_point(token);
    if (character < characters_.size()) {
      characters_[character] = id;
    } else {
      rare_characters_[character] = id;
    }
  }
}

void BpeModel::index_pairs() {
  if (byte_level_ || ignore_merges_) return;
  const bool all_bytes = std::ranges::find(byte_ids_, -1) == byte_ids_.end();
  // Splitting a word is not possible if unknown tokens can be fused or stay pending across the split, or if there is no
  // unknown token, because merges then apply across dropped characters.
  if (byte_fallback_ ? !all_bytes : (fuse_unk_ || unk_ < 0)) return;
  // The name of a fallback token differs from the text that it represents, so no merge may involve it.
  std::vector<bool> alone(static_cast<size_t>(vocabulary_.num_ids()));
  for (const int32_t id : byte_ids_) {
    if (id >= 0) alone[static_cast<size_t>(id)] = true;
  }
  if (unk_ >= 0) alone[static_cast<size_t>(unk_)] = true;
  size_t count = 0;
  for (const Merge& merge : merges_) {
    if (merge.rank == kNoRank) continue;
    for (const uint64_t id : {merge.pair >> 32, merge.pair & 0xFFFFFFFF, static_cast<uint64_t>(merge.id)}) {
      if (alone[id]) return;
    }
    for_each_pair(vocabulary_.token(merge.id), [&count](uint32_t, uint32_t) { ++count; });
  }
  near_pairs_.assign(kNearCharacters * kNearCharacters, false);
  far_pairs_.assign(std::bit_ceil(2 * count + 1), 0);
  for (const Merge& merge : merges_) {
    if (merge.rank == kNoRank) continue;
    for_each_pair(vocabulary_.token(merge.id),
                  [this](uint32_t left, uint32_t right) { add_pair(left, right); });
  }
  separable_ = true;
}

void BpeModel::add_pair(uint32_t left, uint32_t right) {
  const uint32_t near_left = near_character(left), near_right = near_character(right);
  if (near_left < kNearCharacters && near_right < kNearCharacters) {
    near_pairs_[near_left * kNearCharacters + near_right] = true;
    return;
  }
  const uint64_t key = uint64_t{left} << 32 | right, mask = far_pairs_.size() - 1;
  uint64_t slot = hash_key(key) & mask;
  while (far_pairs_[slot] != 0 && far_pairs_[slot] != key) slot = (slot + 1) & mask;
  far_pairs_[slot] = key;
}

}  // namespace te::text
