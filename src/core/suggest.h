// Suggestions for mistyped names of options, subcommands, config keys, presets and values.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace te {

/// Number of edits (insert, delete, replace, swap of neighbors) that turn one text into the other.
/// Source: the optimal string alignment distance (Damerau 1964; Wagner and Fischer 1974).
int edit_distance(std::string_view a, std::string_view b);

/// Distance of a name from a candidate, in hundredths of an edit; empty if it is too large for a suggestion.
///   0           equal except for case and separators (dryrun, --dry-run)
///   100         one edit; a name of 8 letters may have two
///   about 150   an abbreviation, or a name with more or longer words (n_head, num_attention_heads; output, out)
/// `related` means that the candidate is in the name's own section or command: shorter abbreviations are accepted.
std::optional<int> name_distance(std::string_view name, std::string_view candidate, bool related = true);

/// Collects the nearest of the added names; equally near ones are kept in the order of the calls.
class NearestNames {
 public:
  void add(std::string_view name, int distance);
  /// Adds the candidate with its name_distance from the mistyped name, if there is one.
  void add_if_near(std::string_view mistyped, std::string_view candidate);
  bool empty() const { return names_.empty(); }
  int distance() const { return distance_; }  ///< distance of the kept names
  /// "did you mean 'a' or 'b'?", with at most three names in `quote`. There must be at least one name.
  std::string question(std::string_view quote = "'") const;

 private:
  std::vector<std::string> names_;
  int distance_ = 0;
};

}  // namespace te
