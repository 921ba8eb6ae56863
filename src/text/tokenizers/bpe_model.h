// Byte pair encoding of one word: the merge of lowest rank first, until none applies. A word starts as units:
//   bytes        of the byte-level vocabularies (GPT-2, Llama-3), where every byte has a token
//   characters   of SentencePiece-like ones (Llama-2); what the vocabulary lacks becomes the tokens of its bytes
//                (byte_fallback), else the unknown token, else nothing (which is said once)
// Definition: Hugging Face tokenizers, models/bpe. Long words take n log n steps, short ones no allocation, and
// words that come again are looked up.
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

/// What is read from a file. In byte-level vocabularies, tokens and merges are in the printable alphabet of
/// byte_level.h.
struct BpeSpec {
  std::vector<std::pair<std::string, int64_t>> vocab;       ///< token, id
  std::vector<std::pair<std::string, std::string>> merges;  ///< best first
  std::vector<uint32_t> ranks;  ///< of the merges, where some are as good as others; empty: their place
  std::optional<std::string> unk_token;
  bool fuse_unk = false;       ///< neighbouring unknown characters make one unknown token
  bool byte_fallback = false;  ///< tokens `<0x00>` to `<0xFF>` stand for bytes
  bool ignore_merges = false;  ///< a word that is a token is that token, whatever merges say
  bool byte_level = false;
};

class BpeModel : public TokenModel {
 public:
  /// UserError "WHERE: ..." for merges of unknown tokens, duplicate or absurd ids, an unk_token that is missing.
  BpeModel(const BpeSpec& spec, const std::string& where);

  /// Appends the tokens of `word`, any bytes. In a byte-level vocabulary `word` is the bytes themselves.
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

  std::unordered_map<std::string, int32_t, TextHash, std::equal_to<>> words_;  // by bytes, for ignore_merges
  std::vector<Merge> merges_;  // open addressing; kNoRank marks a free slot
  uint64_t merge_mask_ = 0;

  std::string where_;
  bool byte_level_, byte_fallback_, fuse_unk_, ignore_merges_;
  int32_t unk_ = -1;
  std::array<int32_t, 256> byte_ids_{};                    // the unit, or the fallback, of a byte; -1: none
  std::vector<int32_t> characters_;                        // ids of code points below 0x10000; -1: none
  std::unordered_map<uint32_t, int32_t> rare_characters_;  // and of those above

  // Pairs of neighbouring characters inside what merges make. Elsewhere a word falls apart into words that no
  // merge joins, which is what makes the cache work where a whole document is one word. Near characters, ASCII
  // and U+2581, have a table, the others share an open-addressing one where 0 marks a free slot.
  static constexpr uint32_t kNearCharacters = 129;
  static uint32_t near_character(uint32_t c) { return c < 128 ? c : c == 0x2581 ? 128 : kNearCharacters; }
  bool separable_ = false;
  std::vector<bool> near_pairs_;
  std::vector<uint64_t> far_pairs_;
  mutable std::atomic<bool> warned_ = false;  // that text is lost
};

}  // namespace te::text
