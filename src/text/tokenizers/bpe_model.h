// Byte pair encoding of one word: repeatedly applies the merge with the lowest rank until none applies. The initial
// units of a word are
//   bytes        in byte-level vocabularies (GPT-2, Llama-3), where every byte has a token
//   characters   in SentencePiece-like vocabularies (Llama-2); a character without a token becomes the tokens of its
//                bytes (byte_fallback), else the unknown token, else nothing (with one warning)
// Definition: Hugging Face tokenizers, models/bpe. Long words take O(n log n) steps, short ones no allocation, and
// repeated words are looked up in a cache.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/tokenizers/token_model.h"

namespace te::text {

/// The contents of a tokenizer file. In byte-level vocabularies, tokens and merges use the printable alphabet of
/// byte_level.h.
struct BpeSpec {
  using Model = class BpeModel;
  std::vector<std::pair<std::string, int64_t>> vocab;       ///< token, id
  std::vector<std::pair<std::string, std::string>> merges;  ///< lowest rank first
  std::vector<uint32_t> ranks;  ///< ranks of the merges, which can be equal; empty: their positions
  std::optional<std::string> unk_token;
  bool fuse_unk = false;       ///< adjacent unknown characters become one unknown token
  bool byte_fallback = false;  ///< tokens `<0x00>` to `<0xFF>` represent bytes
  bool ignore_merges = false;  ///< a word that is a token becomes that token without merging
  bool byte_level = false;
};

class BpeModel : public TokenModel {
 public:
  /// UserError "WHERE: ..." for merges of unknown tokens, duplicate or out-of-range ids, and a missing unk_token.
  BpeModel(const BpeSpec& spec, const std::string& where);

  /// Appends the tokens of `word`, which can contain any bytes. With a byte-level vocabulary, `word` is the raw bytes.
  void encode(std::string_view word, ModelWorkspace& workspace, std::vector<int32_t>& tokens) const override;

 private:
  struct Merge {
    uint64_t pair;
    uint32_t rank;
    int32_t id;
  };
  struct TextHash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  static constexpr uint32_t kNoRank = 0xFFFFFFFF;
  using Symbol = ModelWorkspace::Symbol;

  void read_merges(const BpeSpec& spec, const std::string& where);
  void index_units(const BpeSpec& spec, const std::string& where);
  void index_pairs();
  void add_pair(uint32_t left, uint32_t right);
  void add_merge(uint64_t pair, uint32_t rank, int32_t id);
  const Merge* find_merge(int32_t left, int32_t right) const;
  int32_t character_id(std::string_view character) const;
  bool may_merge(uint32_t left, uint32_t right) const;

  void encode_part(std::string_view word, ModelWorkspace& workspace, std::vector<int32_t>& tokens) const;
  void encode_uncached(std::string_view word, ModelWorkspace& workspace, std::vector<int32_t>& tokens) const;
  void make_symbols(std::string_view word, std::vector<Symbol>& symbols) const;
  void warn_of_loss(std::string_view lost) const;
  void rank_pair(std::vector<Symbol>& symbols, int32_t at) const;
  void merge_at(std::vector<Symbol>& symbols, int32_t at) const;
  void merge_short(std::vector<Symbol>& symbols) const;
  void merge_long(std::vector<Symbol>& symbols, std::vector<uint64_t>& heap) const;

  std::unordered_map<std::string, int32_t, TextHash, std::equal_to<>>
      words_;                  // by raw bytes, for ignore_merges
  std::vector<Merge> merges_;  // open addressing; kNoRank marks a free slot
  uint64_t merge_mask_ = 0;

  std::string where_;
  bool byte_level_, byte_fallback_, fuse_unk_, ignore_merges_;
  int32_t unk_ = -1;
  std::array<int32_t, 256> byte_ids_{};                    // id of a byte's unit or fallback token; -1: none
  std::vector<int32_t> characters_;                        // ids of code points below 0x10000; -1: none
  std::unordered_map<uint32_t, int32_t> rare_characters_;  // ids of code points from 0x10000

  // Pairs of adjacent characters inside merged tokens. A word can be split at all other pairs, because no merge spans
  // them; so the cache also works where a whole document is one word. Pairs of near characters (ASCII and U+2581) have
  // a direct table, the others an open-addressing table in which 0 marks a free slot.
  static constexpr uint32_t kNearCharacters = 129;
  static uint32_t near_character(uint32_t c) { return c < 128 ? c : c == 0x2581 ? 128 : kNearCharacters; }
  bool separable_ = false;
  std::vector<bool> near_pairs_;
  std::vector<uint64_t> far_pairs_;
  mutable std::atomic<bool> warned_ = false;  // whether warn_of_loss() has warned
};

}  // namespace te::text
