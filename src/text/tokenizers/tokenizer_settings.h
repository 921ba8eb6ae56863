// What the files next to a tokenizer say of its tokens: tokenizer_config.json, special_tokens_map.json,
// added_tokens.json, config.json and generation_config.json. Definition: transformers' AutoTokenizer.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "text/tokenizers/added_tokens.h"
#include "text/tokenizers/json_reader.h"

namespace te::text {

struct TokenizerSettings {
  /// A special token by its key, such as `bos_token`; a key without a token is written out as null.
  std::map<std::string, std::optional<AddedToken>> special;
  bool has_config = false;  ///< there is a tokenizer_config.json
  /// The tokenizer_class of tokenizer_config.json without "Fast", else that of config.json's model_type; may be empty.
  std::string tokenizer_class;
  /// Tokens of added_tokens_decoder; without that key, of added_tokens.json, where `older_files` is true and a
  /// tokenizer.json counts more. In the order of their ids.
  std::vector<AddedToken> added;
  bool older_files = false;
  /// Special tokens without an id, in the order in which those that the vocabulary lacks are added.
  std::vector<AddedToken> named;
  std::optional<bool> add_prefix_space;   ///< of tokenizer_config.json
  bool legacy = true;                     ///< likewise
  std::optional<int64_t> generation_end;  ///< eos_token_id of generation_config.json, the first of a list
};

/// UserError "tokenizer NAME: FILE: ..." for a file that is malformed. A folder may have any of the files, or none.
TokenizerSettings read_tokenizer_settings(const std::string& folder, const std::string& name);

/// A token as an object with `content` and the options of AddedToken, without an id.
AddedToken read_added_token(const JsonReader& json);

/// The added tokens of a tokenizer's own file, `own`, with those of the files next to it. UserError, beginning with
/// `where`, when they contradict.
std::vector<AddedToken> merge_added_tokens(std::vector<AddedToken> own, const TokenizerSettings& settings,
                                           const std::string& where);

/// The token that transformers' class of the tokenizer has for `key` (bos_token or eos_token) where no file names one.
std::optional<std::string> default_token(const TokenizerSettings& settings, const std::string& key);

}  // namespace te::text
