// A folder that is written aside and takes its name when it is complete.
#pragma once

#include <filesystem>
#include <functional>

namespace te::convert {

class OutputFolder {
 public:
  /// `target` must not exist or be an empty folder; with `force`, a folder for which `may_replace` is true will do as
  /// well. `option` is what the user gave it by, `kind` what may_replace looks for, for the message. Makes TARGET.tmp.
  OutputFolder(const std::filesystem::path& target, const char* option, bool force, const char* kind,
               const std::function<bool(const std::filesystem::path&)>& may_replace);
  /// Before commit(): removes what was written.
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  const std::filesystem::path& path() const { return temporary_; }  ///< where to write
  /// Syncs the folder and gives it its name.
  void commit();

 private:
  std::filesystem::path target_, temporary_;
  bool committed_ = false;
};

}  // namespace te::convert
