#include "checkpoint/folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/write_error.h"
#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "core/printable.h"

namespace te::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTemporary = ".tmp";
constexpr uint64_t kMaxNameBytes = 4096;  // maximum bytes of a file that names a checkpoint

std::string first_line(const FileText& file) {
  return file.text.substr(0, file.text.find('\n'));
}

/// A step folder can be a link to one on another disk.
bool is_checkpoint(const fs::path& folder) {
  std::error_code error;
  return step_of(folder.filename().string()) >= 0 && fs::is_directory(folder, error) &&
         fs::is_regular_file(folder / "manifest.json", error);
}

/// Everything with the name of a step folder, sorted by step.
std::vector<fs::path> step_folders(const fs::path& directory) {
  std::vector<fs::path> folders;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error))
    if (step_of(entry.path().filename().string()) >= 0) folders.push_back(entry.path());
  std::ranges::sort(folders, [](const fs::path& a, const fs::path& b) {
    return step_of(a.filename().string()) < step_of(b.filename().string());
  });
  return folders;
}

std::vector<fs::path> checkpoints_in(const fs::path& directory) {
  std::vector<fs::path> folders = step_folders(directory);
  std::erase_if(folders, [](const fs::path& folder) { return !is_checkpoint(folder); });
  return folders;
}

/// The complete checkpoint with the highest step; `fault` becomes the fault of the newest damaged one. UserError if the
/// user may not read the newest one.
std::optional<fs::path> newest_complete(const fs::path& directory, std::string& fault) {
  const std::vector<fs::path> folders = step_folders(directory);
  for (auto folder = folders.rbegin(); folder != folders.rend(); ++folder) {
    check_readable(*folder / "manifest.json");
    if (!is_checkpoint(*folder)) continue;
    try {
      read_manifest(*folder);
      return *folder;
    } catch (const UserError& error) {  // damaged: try an older one
      log_warning("{}", error.what());
      if (fault.empty()) fault = error.what();
    }
  }
  return std::nullopt;
}

}  // namespace

std::string step_name(int64_t step) {
  return fmt::format("step_{:08}", step);
}

int64_t step_of(const std::string& name) {
  constexpr std::string_view kPrefix = "step_";
  const std::string digits = name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : "";
  if (digits.size() < 8 || digits.size() > 18 || digits.find_first_not_of("0123456789") != digits.npos)
    return -1;
  return std::stoll(digits);
}

fs::path temporary_folder(const fs::path& directory, int64_t step) {
  return directory / (step_name(step) + std::string(kTemporary));
}

void guard_file_system(const std::function<void()>& body) {
  try {
    body();
  } catch (const fs::filesystem_error& error) {
    write_error("checkpoint.directory: {}: {}; choose a writable folder with enough space",
                error.path1().string(), error.code().message());
  }
}

// --- reading -----------------------------------------------------------------------------------------------

void check_readable(const fs::path& path) {
  if (::faccessat(AT_FDCWD, path.c_str(), R_OK, AT_EACCESS) == 0 || (errno != EACCES && errno != EPERM))
    return;
  user_error("{}: cannot be read: {}; grant this user permission to read it", path.string(),
             std::strerror(errno));
}

std::optional<fs::path> find_latest(const fs::path& directory) {
  const FileText latest = read_file(directory / "latest", kMaxNameBytes);
  const bool named = !latest.missing;
  const std::string name = first_line(latest);
  check_readable(directory / "latest");
  if (step_of(name) >= 0) check_readable(directory / name / "manifest.json");
  if (!name.empty() && name.find('/') == name.npos && is_checkpoint(directory / name))
    return directory / name;
  const std::string fault = latest ? fmt::format("names '{}', which is not a checkpoint", printable(name))
                                   : fmt::format("cannot be read: {}", latest.error);
  std::string damage;
  const std::optional<fs::path> newest = newest_complete(directory, damage);
  if (newest) {
    log_warning("{}: {}; using {}, the newest complete checkpoint", (directory / "latest").string(),
                named ? fault : "not found", newest->filename().string());
    return newest;
  }
  if (named) {
    user_error("{}: {}; correct the file or name the folder of a step", (directory / "latest").string(),
               fault);
  }
  if (!damage.empty()) user_error("{}: has no complete checkpoint: {}", directory.string(), damage);
  return std::nullopt;
}

std::vector<std::pair<int64_t, fs::path>> list_checkpoints(const fs::path& directory) {
  std::vector<std::pair<int64_t, fs::path>> found;
  for (const fs::path& folder : checkpoints_in(directory))
    found.emplace_back(step_of(folder.filename().string()), folder);
  return found;
}

std::optional<fs::path> checkpoint_before(const fs::path& folder) {
  const int64_t own = step_of(folder.filename().string());
  std::optional<fs::path> before;
  for (const auto& [step, other] : list_checkpoints(folder.parent_path()))
    if (step < own) before = other;
  return before;
}

std::optional<fs::path> named_by(const fs::path& path) {
  const std::string name = first_line(read_file(path, kMaxNameBytes));
  if (name.find('/') != name.npos || !is_checkpoint(path.parent_path() / name)) return std::nullopt;
  return path.parent_path() / name;
}

namespace {

bool is_checkpoint_directory(const fs::path& path) {
  std::error_code error;
  if (fs::exists(path / "latest", error)) return true;
  for (const auto& entry : fs::directory_iterator(path, error))
    if (step_of(entry.path().filename().string()) >= 0) return true;
  return false;
}

/// The path of a checkpoint without a trailing slash, with a parent, and with the target's name if it is a link of
/// another name: runs compare its name and its directory with their own.
fs::path step_folder(const fs::path& path) {
  std::error_code error;
  const fs::path folder = path.has_filename() ? path : path.parent_path();
  if (step_of(folder.filename().string()) >= 0)
    return folder.has_parent_path() ? folder : fs::path(".") / folder;
  const fs::path target = fs::canonical(folder, error);
  return step_of(target.filename().string()) >= 0 ? target : folder;
}

/// `path`, or its folder `checkpoints` if `path` is a run folder.
fs::path directory_of(const fs::path& path) {
  const fs::path inside = path / "checkpoints";
  return !is_checkpoint_directory(path) && is_checkpoint_directory(inside) ? inside : path;
}

}  // namespace

bool is_checkpoint_path(const fs::path& path) {
  std::error_code error;
  return named_by(path) || fs::exists(path / "manifest.json", error) || is_checkpoint_directory(path) ||
         directory_of(path) != path || fs::exists(path / "run.json", error);
}

fs::path resolve(const fs::path& path) {
  std::error_code error;
  if (const std::optional<fs::path> named = named_by(path)) return step_folder(*named);
  if (fs::exists(path, error) && !fs::is_directory(path, error))
    user_error("{}: is a file, not a checkpoint; give the folder that has it", path.string());
  if (fs::exists(path / "config.json", error) && !fs::exists(path / "latest", error)) {
    user_error(
        "{}: is a Hugging Face folder, not a checkpoint; start a new run from it with checkpoint.init_from, "
        "or convert it to a checkpoint: te-convert import {} --out DIRECTORY",
        path.string(), path.string());
  }
  if (fs::exists(path / "manifest.json", error)) return step_folder(path);
  if (const std::optional<fs::path> latest = find_latest(directory_of(path))) return *latest;
  if (fs::exists(path / "run.json", error)) {
    check_readable(path / "checkpoints");
    user_error(
        "{}: is a run folder without checkpoints; if its config sets checkpoint.directory, give that folder",
        path.string());
  }
  user_error(
      "{}: not found; a checkpoint is a folder with manifest.json, a directory of such folders, or a run's "
      "folder",
      (path / "manifest.json").string());
}

fs::path in_directory(const fs::path& directory, const fs::path& folder) {
  std::error_code error;
  const fs::path own = directory / folder.filename();
  return fs::equivalent(own, folder, error) ? own : folder;
}

// --- writing -----------------------------------------------------------------------------------------------

void sync_path(const fs::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const bool synced = file >= 0 && ::fsync(file) == 0;
  const int reason = errno;
  if (file >= 0) ::close(file);
  if (!synced) {
    write_error("{}: cannot be synced to disk: {}; check the disk's free space", path.string(),
                std::generic_category().message(reason));
  }
}

void write_text(const fs::path& path, const std::string& text) {
  const fs::path temporary = path.string() + std::string(kTemporary);
  {
    File out(temporary, O_WRONLY | O_CREAT | O_TRUNC);
    if (!out.is_open() || !out.write_all(text)) {
      std::error_code ignored;
      fs::remove(temporary, ignored);
      write_error("{}: cannot be written; check the disk's free space and the folder's permissions",
                  path.string());
    }
  }
  sync_path(temporary);
  fs::rename(temporary, path);
}

void make_latest(const fs::path& folder) {
  guard_file_system([&] {
    write_text(folder.parent_path() / "latest", folder.filename().string() + "\n");
    sync_path(folder.parent_path());
  });
}

void mark_best(const fs::path& directory, const std::vector<int64_t>& steps) {
  guard_file_system([&] {
    const fs::path file = directory / "best";
    for (const int64_t step : steps) {
      if (!is_checkpoint(directory / step_name(step))) continue;
      write_text(file, step_name(step) + "\n");
      sync_path(directory);
      return;
    }
    fs::remove(file);
  });
}

bool is_removable(const fs::path& folder) {
  std::error_code ignored;
  return fs::is_symlink(folder, ignored) ||
         ::faccessat(AT_FDCWD, folder.c_str(), W_OK | X_OK, AT_EACCESS) == 0 || errno != EACCES;
}

void remove_checkpoint(const fs::path& folder) {
  if (!is_removable(folder))
    throw fs::filesystem_error("cannot remove", folder, std::make_error_code(std::errc::permission_denied));
  const fs::path doomed = folder.string() + std::string(kTemporary);
  fs::remove_all(doomed);
  fs::rename(folder, doomed);
  fs::remove_all(doomed);
}

void remove_leftovers(const fs::path& directory) {
  std::error_code ignored;
  std::vector<fs::path> leftovers;
  std::vector<std::pair<fs::path, fs::path>> interrupted;  // between the renames of move_into_place()
  for (const auto& entry : fs::directory_iterator(directory, ignored)) {
    std::string name = entry.path().filename().string();
    if (!name.ends_with(kTemporary)) continue;
    name.resize(name.size() - kTemporary.size());
    if (name.ends_with(".old")) {
      name.resize(name.size() - 4);
      const bool replaced = fs::exists(directory / name, ignored);
      if (step_of(name) >= 0 && !replaced && fs::exists(entry.path() / "manifest.json", ignored)) {
        interrupted.emplace_back(entry.path(), directory / name);
        continue;
      }
    }
    if (step_of(name) >= 0 && entry.is_directory(ignored) && !entry.is_symlink(ignored))
      leftovers.push_back(entry.path());
  }
  for (const auto& [old, folder] : interrupted) fs::rename(old, folder, ignored);
  for (const fs::path& folder : leftovers) fs::remove_all(folder, ignored);
}

void move_into_place(const fs::path& temporary, const fs::path& folder) {
  if (!fs::exists(folder)) return fs::rename(temporary, folder);
  if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, folder.c_str(), RENAME_EXCHANGE) == 0) {
    fs::remove_all(temporary);
    return;
  }
  const fs::path old = folder.string() + ".old.tmp";  // the file system cannot exchange names
  fs::remove_all(old);
  fs::rename(folder, old);
  fs::rename(temporary, folder);
  fs::remove_all(old);
}

fs::path begin_folder(const fs::path& directory, int64_t step) {
  const fs::path temporary = temporary_folder(directory, step);
  fs::remove_all(temporary);
  fs::create_directories(temporary);
  return temporary;
}

fs::path commit_folder(const fs::path& directory, int64_t step, const std::string& manifest) {
  const fs::path temporary = temporary_folder(directory, step), folder = directory / step_name(step);
  write_text(temporary / "manifest.json", manifest);
  sync_path(temporary);
  move_into_place(temporary, folder);  // the folder exists if a run resumed before this step saves it again
  sync_path(directory);
  make_latest(folder);
  return folder;
}

void discard_folder(const fs::path& temporary) {
  std::error_code ignored;
  fs::remove_all(temporary, ignored);
}

void prune(const fs::path& directory, int64_t keep, const fs::path& last_verified,
           const std::vector<int64_t>& best) {
  if (keep == 0) return;
  std::vector<fs::path> folders = checkpoints_in(directory);
  std::erase_if(folders, [&](const fs::path& folder) {
    std::error_code error;
    if (fs::is_symlink(folder, error)) return true;  // the user's, and removing it would free no space
    if (step_of(folder.filename().string()) == 0) return true;  // imported weights, which no run has saved
    return std::ranges::find(best, step_of(folder.filename().string())) != best.end();
  });
  const std::string latest = first_line(read_file(directory / "latest", kMaxNameBytes));
  // Steps above the latest one belong to a branch that the run abandoned. Times do not tell, as copies get new ones.
  std::stable_partition(folders.begin(), folders.end(), [newest = step_of(latest)](const fs::path& folder) {
    return step_of(folder.filename().string()) > newest;
  });
  int64_t left = static_cast<int64_t>(folders.size());
  for (const fs::path& folder : folders) {
    if (left <= keep) return;
    if (folder.filename() == latest || folder.filename() == last_verified.filename()) continue;
    remove_checkpoint(folder);
    --left;
  }
}

}  // namespace te::checkpoint
