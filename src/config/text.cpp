// Quoting, and the nearest key to a mistyped one.
#include "config/text.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "config/key_table.h"
#include "core/error.h"

namespace te::config {

namespace {

void append_escaped(std::string& result, char c) {
  const auto byte = static_cast<unsigned char>(c);
  if (byte < 0x20 || byte == 0x7f) {
    result += fmt::format("\\x{:02x}", byte);
  } else {
    result += c;
  }
}

}  // namespace

std::string in_quotes(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    append_escaped(result, c);
  }
  return result + '"';
}

std::string one_line(std::string_view text) {
  constexpr size_t kShown = 120;
  std::string result;
  for (const char c : text.substr(0, kShown)) append_escaped(result, c);
  return text.size() > kShown ? result + "..." : result;
}

std::string key_name(std::string_view path) {
  return fmt::format("'{}'", one_line(path));
}

int edit_distance(std::string_view a, std::string_view b) {
  std::vector<int> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

namespace {

std::string_view leaf(std::string_view path) {
  return path.substr(path.rfind('.') + 1);  // npos + 1 is 0: a path without a dot is its own leaf
}

std::string_view take_word(std::string_view& text) {
  const std::string_view word = text.substr(0, text.find('_'));
  text.remove_prefix(std::min(text.size(), word.size() + 1));
  return word;
}

/// The words of name begin words of candidate, in order: n_head and num_attention_heads, batch_size and
/// micro_batch_size.
bool abbreviates(std::string_view name, std::string_view candidate) {
  if (name.size() < 4) return false;
  while (!name.empty()) {
    const std::string_view word = take_word(name);
    bool matched = false;
    while (!matched && !candidate.empty()) matched = take_word(candidate).starts_with(word);
    if (!matched) return false;
  }
  return true;
}

/// Twice the edits between two names; an abbreviation ranks between one edit and two.
int name_cost(std::string_view name, std::string_view candidate) {
  const int edits = 2 * edit_distance(name, candidate);
  return abbreviates(name, candidate) ? std::min(edits, 3) : edits;
}

}  // namespace

std::string suggestion(std::string_view unknown_path) {
  if (const std::string_view known = key_of_synonym(leaf(unknown_path)); !known.empty())
    return fmt::format("did you mean '{}'?", known);
  // A right name in the wrong section must win over a wrong name in the right one: names weigh more.
  const std::string_view name = leaf(unknown_path).substr(0, 64);
  const std::string_view section = unknown_path.substr(0, unknown_path.find('.'));
  const bool has_section = section.size() != unknown_path.size();
  std::string_view best;
  int best_cost = 1 << 30;
  const auto consider = [&](std::string_view candidate, std::string_view candidate_section) {
    const bool elsewhere = has_section ? candidate_section != section : !candidate_section.empty();
    const int cost = name_cost(name, leaf(candidate)) + (elsewhere ? 1 : 0);
    if (cost < best_cost) {
      best_cost = cost;
      best = candidate;
    }
  };
  if (!has_section) {
    for (const Section& candidate : sections()) consider(candidate.name, {});
  }
  for (const Key& candidate : keys()) consider(candidate.path, candidate.section());
  const int limit = std::max<int>(1, static_cast<int>(name.size()) / 2);
  if (best_cost / 2 <= limit) return fmt::format("did you mean '{}'?", best);
  return fmt::format("the nearest is '{}'; docs/configuration.md lists all keys", best);
}

}  // namespace te::config
