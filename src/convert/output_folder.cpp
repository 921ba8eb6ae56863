#include "convert/output_folder.h"

#include <system_error>

#include "checkpoint/folder.h"
#include "core/error.h"

namespace te::convert {
namespace {

namespace fs = std::filesystem;

/// The folder without a final slash; a link's target, so that the link stays.
fs::path folder_of(const fs::path& target) {
  const fs::path folder = target.has_filename() ? target : target.parent_path();
  std::error_code error;
  if (!fs::is_symlink(folder, error)) return folder;
  const fs::path linked = fs::canonical(folder, error);
  return error ? folder : linked;
}

}  // namespace

OutputFolder::OutputFolder(const fs::path& target, bool force, const char* kind,
                           const std::function<bool(const fs::path&)>& may_replace)
    : target_(folder_of(target)), temporary_(target_.string() + ".tmp") {
  std::error_code error;
  if (target_.empty()) user_error("--out: is empty; give a folder");
  if (fs::exists(target_, error) && !(fs::is_directory(target_, error) && fs::is_empty(target_, error))) {
    if (!force)
      user_error("--out {}: exists; give another folder, or --force to replace it", target_.string());
    if (!fs::is_directory(target_, error) || !may_replace(target_))
      user_error("--out {}: is not {}; --force replaces nothing else; give another folder", target_.string(),
                 kind);
  }
  fs::remove_all(temporary_, error);
  fs::create_directories(temporary_, error);
  if (error) user_error("--out {}: cannot be created: {}", temporary_.string(), error.message());
}

OutputFolder::~OutputFolder() {
  std::error_code ignored;
  if (!committed_) fs::remove_all(temporary_, ignored);
}

void OutputFolder::commit() {
  checkpoint::sync_path(temporary_);
  try {
    checkpoint::move_into_place(temporary_, target_);
  } catch (const fs::filesystem_error& error) {
    user_error("{}: the finished folder cannot be renamed to this: {}; remove what is there",
               target_.string(), error.code().message());
  }
  committed_ = true;
  const fs::path parent = target_.has_parent_path() ? target_.parent_path() : fs::path(".");
  checkpoint::sync_path(parent);
}

}  // namespace te::convert
