// A folder that is written under a temporary name and renamed when it is complete.
#pragma once

#include <filesystem>
#include <functional>

namespace te::convert {

/// The folder of --out.
class OutputFolder {
 public:
  /// `target` must not exist or be an empty folder; with `force` it may also be a folder for which `may_replace` is
  /// true; messages call these `kind`. Creates TARGET.tmp.
  OutputFolder(const std::filesystem::path& target, bool force, const char* kind,
               const std::function<bool(const std::filesystem::path&)>& may_replace);
  /// Removes TARGET.tmp if commit() was not called.
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  const std::filesystem::path& path() const { return temporary_; }  ///< where to write
  /// Syncs the folder and renames it to the target.
  void commit();

 private:
  std::filesystem::path target_, temporary_;
  bool committed_ = false;
};

}  // namespace te::convert
