// The name that a mistyped one most probably means: for options, subcommands, config keys, presets and values.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace te {

/// Edits (insert, delete, replace, swap of neighbors) that turn one text into the other.
/// Source: the optimal string alignment distance (Damerau 1964; Wagner and Fischer 1974).
int edit_distance(std::string_view a, std::string_view b);

/// How much a name differs from a candidate, in hundredths of an edit; empty: too much to be meant.
///   0           the same but for case and separators (dryrun, --dry-run)
///   100         an edit; a name of 8 letters may have two
///   about 150   an abbreviation, or a name with more or longer words (n_head, num_attention_heads; output, out)
/// `related`: the candidate is of the name's own section or command, where shorter abbreviations are believed.
std::optional<int> name_distance(std::string_view name, std::string_view candidate, bool related = true);

/// Keeps the nearest of the names that are offered; those that are equally near, in the order of the offers.
class NearestNames {
 public:
  void add(std::string_view name, int distance);
  /// By name_distance.
  void add_if_near(std::string_view mistyped, std::string_view candidate);
  bool empty() const { return names_.empty(); }
  int distance() const { return distance_; }  ///< of all of them
  /// "did you mean 'a' or 'b'?"; at most three of them, `quote` around each. Not of none.
  std::string question(std::string_view quote = "'") const;

 private:
  std::vector<std::string> names_;
  int distance_ = 0;
};

}  // namespace te
