// Folders of checkpoints on disk: names, durability and atomic commit.
//
//   DIR/step_00000500/       a checkpoint
//   DIR/step_00000600.tmp/   a checkpoint that is being written, or whose run was killed
//   DIR/latest               text file with the name of the newest checkpoint
//   DIR/best                 text file with the name of the one with the lowest validation loss (checkpoint.keep_best)
//
// A checkpoint is written to its temporary folder, synced, renamed, and then named in `latest`: after a crash at any
// time the previous checkpoint is intact. All failures of the file system are UserErrors (one line).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace te::checkpoint {

std::string step_name(int64_t step);       ///< "step_00000500"
int64_t step_of(const std::string& name);  ///< inverse of step_name; -1 for other names
std::filesystem::path temporary_folder(const std::filesystem::path& directory, int64_t step);

/// Runs `body` and converts a file system error to a WriteError that names the path.
void guard_file_system(const std::function<void()>& body);

/// UserError with the system's message if the user lacks the permission to read the path. Other faults (a missing file)
/// are not reported. A checkpoint without read permission is not treated as damaged, so no older one replaces it.
void check_readable(const std::filesystem::path& path);

/// The newest checkpoint, which DIR/latest names. If that file is missing or does not name a checkpoint: the complete
/// checkpoint with the highest step, with a warning. Empty if the directory has neither `latest` nor a checkpoint.
/// UserError if `latest` names a missing checkpoint, or all are damaged (a new start would overwrite a run).
std::optional<std::filesystem::path> find_latest(const std::filesystem::path& directory);

/// The checkpoint that a file such as DIR/best or DIR/latest names; empty if `path` is not such a file.
std::optional<std::filesystem::path> named_by(const std::filesystem::path& path);

/// The step folder for a user's path, which is the step folder itself, a file that names it (DIR/best), a checkpoint
/// directory (its find_latest), or a run folder with one (RUN/checkpoints). UserError if there is no checkpoint.
std::filesystem::path resolve(const std::filesystem::path& path);

/// DIRECTORY/NAME if that is `folder`, which may be given by another path or link, else `folder`.
std::filesystem::path in_directory(const std::filesystem::path& directory,
                                   const std::filesystem::path& folder);

/// True if resolve() would look for a checkpoint in this path, even if there is no complete one.
bool is_checkpoint_path(const std::filesystem::path& path);

/// The checkpoints of a directory and their steps, sorted by step, including damaged ones.
std::vector<std::pair<int64_t, std::filesystem::path>> list_checkpoints(
    const std::filesystem::path& directory);

/// The previous checkpoint in the directory of a step folder: the one with the highest lower step.
std::optional<std::filesystem::path> checkpoint_before(const std::filesystem::path& folder);

/// Names a checkpoint in its directory's `latest`. WriteError if that cannot be written.
void make_latest(const std::filesystem::path& folder);

/// Names the first of these steps that has a checkpoint in DIR/best, or removes the file if none has one. WriteError if
/// it cannot be written.
void mark_best(const std::filesystem::path& directory, const std::vector<int64_t>& steps);

/// False if this user lacks the permission to delete the folder's files.
bool is_removable(const std::filesystem::path& folder);

/// Deletes a checkpoint. It is renamed first, so that a partly deleted folder never has a checkpoint's name.
/// filesystem_error, with the folder as it was, if it is not removable.
void remove_checkpoint(const std::filesystem::path& folder);

/// Removes the temporary folders of runs that were killed, and restores a step whose replacement was interrupted.
void remove_leftovers(const std::filesystem::path& directory);

/// Renames a finished folder to its final name. If there is already a folder of that name, the two are exchanged
/// (atomically if the file system supports it) and the old one is removed.
void move_into_place(const std::filesystem::path& temporary, const std::filesystem::path& folder);

/// Creates an empty temporary folder for a step.
std::filesystem::path begin_folder(const std::filesystem::path& directory, int64_t step);
/// Writes the manifest into a temporary folder whose other files are complete and synced, renames the folder to its
/// final name and updates `latest`. Returns DIRECTORY/step_name.
std::filesystem::path commit_folder(const std::filesystem::path& directory, int64_t step,
                                    const std::string& manifest);
/// Removes a temporary folder and its contents; ignores errors.
void discard_folder(const std::filesystem::path& temporary);

/// Deletes checkpoints until `keep` are left; 0 keeps all: first the steps above the latest one, which an earlier start
/// of the run has left, then the lowest steps. Does not delete the latest one, `last_verified`, or folders without a
/// checkpoint's name and manifest. Links to step folders, checkpoints of the steps in `best`, and step 0 (imported
/// weights) are neither counted nor deleted.
void prune(const std::filesystem::path& directory, int64_t keep, const std::filesystem::path& last_verified,
           const std::vector<int64_t>& best = {});

void sync_path(const std::filesystem::path& path);
/// Writes a file atomically: under a temporary name, then sync and rename.
void write_text(const std::filesystem::path& path, const std::string& text);

}  // namespace te::checkpoint
