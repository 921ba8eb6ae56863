// Settings of a tokenizer in the other files of its folder: tokenizer_config.json, special_tokens_map.json,
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
  /// Special tokens by key, such as `bos_token`; nullopt for a key whose value is null.
  std::map<std::string, std::optional<AddedToken>> special;
  bool has_config = false;  ///< there is a tokenizer_config.json
  /// The tokenizer_class of tokenizer_config.json without "Fast", else the class for config.json's model_type, or
  /// empty.
  std::string tokenizer_class;
  /// Tokens of added_tokens_decoder, ordered by id. Without that key, the tokens of added_tokens.json: then older_files
  /// is true, and a tokenizer.json takes precedence.
  std::vector<AddedToken> added;
  bool older_files = false;
  /// Special tokens without an id, in the order in which the missing ones are added to the vocabulary; then the
  /// defaults of the class, which are not added.
  std::vector<AddedToken> named;
  /// From tokenizer_config.json; nullopt also for null.
  std::optional<bool> add_prefix_space;
  bool legacy = true;                     ///< from tokenizer_config.json
  std::optional<int64_t> generation_end;  ///< eos_token_id of generation_config.json, the first of a list
};

/// Reads the files of a folder; all of them are optional. UserError "tokenizer NAME: FILE: ..." for a malformed file.
TokenizerSettings read_tokenizer_settings(const std::string& folder, const std::string& name);

/// Reads a token from an object with `content` and the options of AddedToken, without its id.
AddedToken read_added_token(const JsonReader& json);

/// Merges `own`, the added tokens of a tokenizer's own file, with the settings' added tokens. UserError "WHERE: ..."
/// if they contradict each other.
std::vector<AddedToken> merge_added_tokens(std::vector<AddedToken> own, const TokenizerSettings& settings,
                                           const std::string& where);

/// The default of the tokenizer's class in transformers for `key` (bos_token, eos_token, unk_token or pad_token).
std::optional<std::string> default_token(const TokenizerSettings& settings, const std::string& key);

}  // namespace te::text
