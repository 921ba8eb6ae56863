// Configuration files as flat lists of assignments: base files (`extends`) before what extends them, YAML merge keys
// (`<<`) filled in, keys of other programs and typing errors refused. Private to this folder.
#pragma once

#include <yaml-cpp/yaml.h>

#include <set>
#include <string>
#include <vector>

namespace te::config {

/// Where a key stands: a file or preset, and its line.
struct Origin {
  std::string source;
  int line = 0;             ///< from 1 on; 0 for a preset, which has no lines
  std::string str() const;  ///< "run.yaml:3", "preset:gpt2"
};

/// One key with its value, of a known path; a later assignment to the same path wins.
struct Assignment {
  std::string path;  ///< "model.num_layers"
  Origin at;         ///< of the key
  YAML::Node value;
};

/// Reads files one after another. Each of its functions throws UserError, one line with file and line, on any mistake.
class SourceReader {
 public:
  /// A file, or the preset of "preset:NAME". What was read before is overridden.
  void read(const std::string& source);
  /// The same with a text that stands for the file `source`.
  void read_text(const std::string& text, const std::string& source);

  const std::vector<Assignment>& assignments() const { return assignments_; }

 private:
  struct Entry {
    std::string name;
    YAML::Node key, value;
  };
  /// A file that is being read, and what it has been found to hold.
  struct File {
    std::string source;    ///< as it is shown
    std::string identity;  ///< the same for all paths to the file
    int expanded = 0;      ///< entries seen, those behind aliases each time
  };

  void read_document(const YAML::Node& root, File& file);
  void read_bases(const YAML::Node& key, const YAML::Node& value, const File& file);
  void read_base(const std::string& name, const std::string& where, const File& file);
  void read_section(const Entry& section, File& file);
  std::vector<Entry> entries_of(const YAML::Node& map, const std::string& prefix, File& file, int depth = 0);
  void add_merged(std::vector<Entry>& entries, const Entry& merge, const std::string& prefix, File& file,
                  int depth);

  std::vector<File> chain_;     ///< files that are being read, outermost first
  std::set<std::string> read_;  ///< identities of what was read: as a base, each counts once
  std::vector<Assignment> assignments_;
};

/// The name of a run that is described by these sources: their stems, "gpt2+fp8".
std::string run_name(const std::vector<std::string>& sources);

}  // namespace te::config
