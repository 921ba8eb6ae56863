#include "core/suggest.h"

#include <algorithm>
#include <cctype>
#include <string>
#include <utility>

#include "core/error.h"

namespace te {
namespace {

constexpr int kEdit = 100, kWords = 150;
constexpr size_t kMaxLetters = 64;

bool is_separator(char c) {
  return c == '_' || c == '-' || c == '.';
}

/// The words of a name such as "num-attention_heads", in lower case.
std::vector<std::string> words_of(std::string_view name) {
  std::vector<std::string> words(1);
  for (const char c : name.substr(0, kMaxLetters)) {
    if (!is_separator(c))
      words.back() += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    else if (!words.back().empty())
      words.emplace_back();
  }
  if (words.back().empty()) words.pop_back();
  return words;
}

std::string joined(const std::vector<std::string>& words) {
  std::string letters;
  for (const std::string& word : words) letters += word;
  return letters;
}

/// True if each of `parts` is a prefix of a word in `words` (with `whole`: equal to one), in the same order.
bool found_in(const std::vector<std::string>& parts, const std::vector<std::string>& words, bool whole) {
  size_t at = 0;
  for (const std::string& part : parts) {
    while (at < words.size() && !(whole ? words[at] == part : words[at].starts_with(part))) ++at;
    if (at++ >= words.size()) return false;
  }
  return !parts.empty();
}

}  // namespace

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

std::optional<int> name_distance(std::string_view name, std::string_view candidate, bool related) {
  const std::vector<std::string> words = words_of(name), others = words_of(candidate);
  const std::string letters = joined(words), other = joined(others);
  if (letters.empty() || other.empty()) return std::nullopt;
  if (letters == other) return 0;
  const int longer = static_cast<int>(std::max(letters.size(), other.size()));
  const int extra = std::abs(static_cast<int>(letters.size()) - static_cast<int>(other.size()));
  std::optional<int> best;
  const auto consider = [&](int distance) { best = std::min(best.value_or(distance), distance); };
  // For names of up to two letters an edit is too much.
  const int edits = longer <= 2 ? longer : edit_distance(letters, other);
  if (edits <= std::max(1, longer / 4)) consider(edits * kEdit);
  if (letters.size() >= (related ? 2 : 4) && found_in(words, others, false)) consider(kWords + extra);
  const bool longer_form = related && other.size() >= 3;
  if ((related || others.size() > 1) && found_in(others, words, !longer_form)) consider(kWords + 10 + extra);
  return best;
}

void NearestNames::add(std::string_view name, int distance) {
  if (!names_.empty() && distance > distance_) return;
  if (names_.empty() || distance < distance_) names_.clear();
  distance_ = distance;
  if (std::ranges::find(names_, name) == names_.end()) names_.emplace_back(name);
}

void NearestNames::add_if_near(std::string_view mistyped, std::string_view candidate) {
  if (const std::optional<int> distance = name_distance(mistyped, candidate)) add(candidate, *distance);
}

std::string NearestNames::question(std::string_view quote) const {
  TE_CHECK(!names_.empty(), "there is no name to suggest");
  const size_t shown = std::min<size_t>(names_.size(), 3);
  std::string text = "did you mean ";
  for (size_t i = 0; i < shown; ++i) {
    if (i > 0) text += i + 1 == shown ? " or " : ", ";
    text += fmt::format("{}{}{}", quote, names_[i], quote);
  }
  return text + "?";
}

}  // namespace te
