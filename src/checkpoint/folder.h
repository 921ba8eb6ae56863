// Folders of checkpoints on disk: names, durability, and the one instant at which a checkpoint comes into being.
//
//   DIR/step_00000500/       a checkpoint
//   DIR/step_00000600.tmp/   one that is being written, or was when the run was killed
//   DIR/latest               the name of the newest, as text
//   DIR/best                 likewise, of the one with the lowest validation loss (checkpoint.keep_best)
//
// A checkpoint is written to its temporary folder, synced, renamed, and only then named in `latest`: a crash at any
// instant leaves the previous one good. All failures of the file system are UserErrors of one line.
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
int64_t step_of(const std::string& name);  ///< the inverse; -1 for any other name
std::filesystem::path temporary_folder(const std::filesystem::path& directory, int64_t step);

/// Runs body; an error of the file system becomes a WriteError that names the path.
void guard_file_system(const std::function<void()>& body);

/// UserError with the system's words when this user may not read the path, which may be missing or broken otherwise: a
/// checkpoint that may not be read is not a damaged one, and no older one takes its place.
void check_readable(const std::filesystem::path& path);

/// The newest checkpoint: the one that DIR/latest names. Where that is missing or names no checkpoint, the complete one
/// of the highest step, with a warning. Empty when the directory holds neither `latest` nor a checkpoint; UserError
/// when `latest` names what is not there and there is no other (starting anew would overwrite a run).
std::optional<std::filesystem::path> find_latest(const std::filesystem::path& directory);

/// The checkpoint that a file such as DIR/best or DIR/latest names; empty when `path` is no such file.
std::optional<std::filesystem::path> named_by(const std::filesystem::path& path);

/// A step folder for what the user gave: that folder, the one that a file of that name holds (DIR/best), or find_latest
/// of a checkpoint directory or of a run's folder that has one (RUN/checkpoints). UserError when there is none.
std::filesystem::path resolve(const std::filesystem::path& path);

/// True where resolve() looks for a checkpoint, whether or not it finds a complete one.
bool is_checkpoint_path(const std::filesystem::path& path);

/// The checkpoints of a directory and their steps, in the order of the steps; complete or damaged.
std::vector<std::pair<int64_t, std::filesystem::path>> list_checkpoints(
    const std::filesystem::path& directory);

/// Of the checkpoints beside a step folder, the one of the highest step below its own.
std::optional<std::filesystem::path> checkpoint_before(const std::filesystem::path& folder);

/// Makes a checkpoint its directory's latest. WriteError when it cannot be written.
void make_latest(const std::filesystem::path& folder);

/// Names the first of these steps that has a checkpoint in DIR/best, or removes that file where none has. WriteError
/// when it cannot be written.
void mark_best(const std::filesystem::path& directory, const std::vector<int64_t>& steps);

/// Deletes a checkpoint: no half of it ever has a checkpoint's name.
void remove_checkpoint(const std::filesystem::path& folder);

/// Removes the temporary folders of runs that were killed; nothing else.
void remove_leftovers(const std::filesystem::path& directory);

/// Gives a finished folder its name. Where there is one of that name, the two are swapped at one instant (as far as the
/// file system can), and the old one is removed.
void move_into_place(const std::filesystem::path& temporary, const std::filesystem::path& folder);

/// Makes an empty temporary folder for a step.
std::filesystem::path begin_folder(const std::filesystem::path& directory, int64_t step);
/// Writes the manifest into a temporary folder whose other files are complete and synced, gives it its name and makes
/// it the latest. Returns DIRECTORY/step_name.
std::filesystem::path commit_folder(const std::filesystem::path& directory, int64_t step,
                                    const std::string& manifest);
/// Removes a temporary folder, whatever it holds; no errors.
void discard_folder(const std::filesystem::path& temporary);

/// Deletes the oldest checkpoints (by the time of their manifest) until `keep` are left; 0 keeps all. Never the latest,
/// never `good`, and only folders that have a checkpoint's name and manifest. Those of the steps in `best` are neither
/// counted nor deleted.
void prune(const std::filesystem::path& directory, int64_t keep, const std::filesystem::path& last_verified,
           const std::vector<int64_t>& best = {});

void sync_path(const std::filesystem::path& path);
/// Writes a file aside, syncs it and renames it.
void write_text(const std::filesystem::path& path, const std::string& text);

}  // namespace te::checkpoint
