// Added tokens: strings that become one token, matched in a document before (or after) it is normalized.
// Definition: Hugging Face tokenizers, tokenizer/added_vocabulary.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace te::text {

struct AddedToken {
  std::string content;
  std::optional<int64_t> id;  ///< nullopt: the id of the vocabulary, or the next one after all others
  bool single_word = false;   ///< does not match inside a word
  bool lstrip = false;        ///< includes the white space before it
  bool rstrip = false;        ///< includes the white space after it
  bool normalized = true;     ///< matched in the normalized text
  bool special = false;
  bool gets_no_id = false;  ///< must be in the vocabulary or have an id; no new id is assigned
  bool if_known = false;    ///< skipped if the vocabulary lacks it
};

/// Finds occurrences of a set of strings: the leftmost match, and the longest of several at the same position.
class AddedTokenFinder {
 public:
  struct Match {
    size_t begin = 0, end = 0;
    const AddedToken* token = nullptr;
  };

  /// Adds a token that is matched as `text`; to be called before build(). The address of `token` must stay valid. If
  /// several tokens have the same text, the first counts.
  void add(std::string text, const AddedToken& token);
  void build();

  bool empty() const { return entries_.empty(); }

  /// Calls on_text(part) and on_token(id) for the parts of `text`, in order; no part is empty.
  template <class OnText, class OnToken>
  void split(std::string_view text, SpecialTokens special, OnText on_text, OnToken on_token) const {
    size_t done = 0;
    size_t from = 0;
    Match match;
    while (next(text, from, match)) {
      from = match.end;
      const AddedToken& token = *match.token;
      if (special == SpecialTokens::kAsText && token.special) continue;
      if (token.single_word && touches_word(text, match)) continue;
      if (token.lstrip) match.begin = std::max(done, white_space_before(text, match.begin));
      if (token.rstrip) match.end = white_space_after(text, match.end);
      if (done < match.begin) on_text(text.substr(done, match.begin - done));
      on_token(static_cast<int32_t>(*token.id));
      done = match.end;
    }
    if (done < text.size()) on_text(text.substr(done));
  }

 private:
  struct Entry {
    std::string text;
    const AddedToken* token;
  };
  bool next(std::string_view text, size_t from, Match& match) const;
  bool match_at(std::string_view text, size_t begin, Match& match) const;
  static bool touches_word(std::string_view text, const Match& match);
  static size_t white_space_before(std::string_view text, size_t end);
  static size_t white_space_after(std::string_view text, size_t begin);

  std::vector<Entry> entries_;           // sorted by text
  std::array<bool, 256> first_bytes_{};  // the bytes that entries begin with
  int only_first_byte_ = -1;             // the first byte of all entries, if it is the same
};

}  // namespace te::text
