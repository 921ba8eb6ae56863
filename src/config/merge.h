// Reads configuration files as flat lists of assignments: base files (`extends`) come before the files that extend
// them, YAML merge keys (`<<`) are expanded, and unknown keys are refused. Private to this folder.
#pragma once

#include <yaml-cpp/yaml.h>

#include <optional>
#include <set>
#include <string>
#include <vector>

namespace te::config {

/// Where a key is given: a file or preset, and the line.
struct Origin {
  std::string source;
  int line = 0;             ///< from 1; 0 for a preset, which has no lines
  std::string str() const;  ///< "run.yaml:3", "preset:gpt2"
};

/// A value for a known key; a later assignment to the same path takes precedence.
struct Assignment {
  std::string path;  ///< "model.num_layers"
  Origin at;         ///< where the key is given
  YAML::Node value;
};

/// Reads several files. All functions throw a UserError of one line, with file and line, for invalid input.
class SourceReader {
 public:
  /// Reads a file, or the preset of "preset:NAME"; its assignments override earlier ones.
  void read(const std::string& source);
  /// Likewise for a text instead of the file `source`.
  void read_text(const std::string& text, const std::string& source);

  const std::vector<Assignment>& assignments() const { return assignments_; }

 private:
  struct Entry {
    std::string name;
    YAML::Node key, value;
  };
  /// A file that is being read.
  struct File {
    std::string source;    ///< as shown in messages
    std::string identity;  ///< the same for all paths to the file
    int expanded = 0;      ///< entries so far, after the expansion of aliases
  };

  void read_document(const YAML::Node& root, File& file);
  void read_bases(const YAML::Node& key, const YAML::Node& value, const File& file);
  void read_base(const std::string& name, const std::string& where, const File& file);
  void read_section(const Entry& section, File& file);
  std::vector<Entry> entries_of(const YAML::Node& map, const std::string& prefix, File& file, int depth = 0);
  void add_merged(std::vector<Entry>& entries, const Entry& merge, const std::string& prefix, File& file,
                  int depth);

  std::vector<File> chain_;     ///< files that are being read, outermost first
  std::set<std::string> read_;  ///< identities of the files read so far; a base is read only once
  std::vector<Assignment> assignments_;
};

/// The line (from 1) at which a second YAML document begins; empty if there is none. YAML::Exception for broken YAML.
std::optional<int> second_document(const std::string& text);

/// The name of a run with these sources: their stems, such as "gpt2+fp8".
std::string run_name(const std::vector<std::string>& sources);

}  // namespace te::config
