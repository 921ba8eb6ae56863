// The tokens of a vocabulary and their ids.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace te::text {

class Vocabulary {
 public:
  /// `tokens`: tokens with ids. UserError "WHERE: ..." for duplicate tokens, and duplicate or out-of-range ids.
  Vocabulary(const std::vector<std::pair<std::string, int64_t>>& tokens, const std::string& where);
  Vocabulary(const Vocabulary&) = delete;  // ids_ refers to names_
  Vocabulary& operator=(const Vocabulary&) = delete;

  /// Whether a token has the id.
  bool has(int32_t id) const;
  /// The token as written in the file; empty for an id without a token.
  std::string_view token(int32_t id) const;
  std::optional<int32_t> find(std::string_view token) const;
  int64_t num_ids() const { return static_cast<int64_t>(names_.size()); }  ///< the largest id + 1
  size_t num_tokens() const { return ids_.size(); }
  /// Every token with its id, in no particular order.
  const std::unordered_map<std::string_view, int32_t>& ids() const { return ids_; }

 private:
  std::vector<std::string> names_;                     // by id
  std::unordered_map<std::string_view, int32_t> ids_;  // views of names_
};

}  // namespace te::text
