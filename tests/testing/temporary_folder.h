// A temporary folder for a test, removed with its contents by the destructor.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <stdexcept>
#include <string>

namespace te::testing {

class TemporaryFolder {
 public:
  explicit TemporaryFolder(const std::filesystem::path& parent = std::filesystem::temp_directory_path()) {
    std::string name = (parent / "te_test_").string() + std::string(6, 'X');  // replaced by mkdtemp
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed in " + parent.string());
    path_ = name;
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

/// TemporaryFolder with paths as strings, for command lines.
class TextFolder : public TemporaryFolder {
 public:
  std::string operator/(const std::string& name) const { return (path() / name).string(); }
};

}  // namespace te::testing
