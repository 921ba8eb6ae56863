#include "text/tokenizers/vocabulary.h"

#include <algorithm>

#include "core/error.h"
#include "text/tokenizers/utf8.h"

namespace te::text {

Vocabulary::Vocabulary(const std::vector<std::pair<std::string, int64_t>>& tokens, const std::string& where) {
  // Limits the size of tables that are indexed by id, relative to the size of the file.
  const int64_t limit = 2 * static_cast<int64_t>(tokens.size()) + 65536;
  int64_t largest = -1;
  for (const auto& [token, id] : tokens) {
    if (id < 0 || id >= limit) {
      user_error("{}: token {} has id {}; the ids of {} tokens must be 0 to {}", where, shown(token), id,
                 tokens.size(), limit - 1);
    }
    largest = std::max(largest, id);
  }
  names_.resize(static_cast<size_t>(largest + 1));
  ids_.reserve(tokens.size());
  std::vector<bool> taken(names_.size());
  for (const auto& [token, id] : tokens) {
    const auto index = static_cast<size_t>(id);
    if (taken[index]) {
      user_error("{}: tokens {} and {} have the same id {}; ids must differ", where, shown(names_[index]),
                 shown(token), id);
    }
    taken[index] = true;
    names_[index] = token;
    if (!ids_.emplace(names_[index], static_cast<int32_t>(id)).second) {
      user_error("{}: token {} occurs twice; tokens must differ", where, shown(token));
    }
  }
}

bool Vocabulary::has(int32_t id) const {
  const auto found = ids_.find(token(id));
  return found != ids_.end() && found->second == id;
}

std::string_view Vocabulary::token(int32_t id) const {
  if (id < 0 || static_cast<size_t>(id) >= names_.size()) return {};
  return names_[static_cast<size_t>(id)];
}

std::optional<int32_t> Vocabulary::find(std::string_view token) const {
  const auto found = ids_.find(token);
  if (found == ids_.end()) return {};
  return found->second;
}

}  // namespace te::text
