// File cache for the selected GEMM algorithms: one file per GPU model and library version, since algorithms of one are
// invalid for another. Deleting a file only costs the time to select again, and its contents are validated before use.
//
//   te-train gemm algorithms 1
//   gpu NVIDIA H200
//   library 130101
//   KEY<tab>EFFORT<tab>ALGORITHM in hexadecimal       one line per problem, sorted
//   checksum FNV-1A (64 bits) OF ALL LINES ABOVE
//
// Processes that share the file compute bitwise equal results. The first process to encounter a problem selects for
// all, even if several encounter it at the same time (search()), and selections made without a search are also written.
// This holds on file systems without locks, too. If the file cannot be written at all, a warning says that results may
// differ.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace te::kernels {

class GemmCache {
 public:
  struct Entry {
    int effort = 0;  ///< thoroughness of the search, 0: none; greater effort replaces smaller
    std::vector<uint8_t> algorithm;
    bool operator==(const Entry&) const = default;
  };

  /// $TE_GEMM_CACHE, $XDG_CACHE_HOME/te-train or $HOME/.cache/te-train; the latter two only if their paths are
  /// absolute. Empty if no variable is set.
  static std::string default_folder();

  /// Reads the file for this GPU and library in `folder` (empty: no file is used). A file that is damaged or for
  /// another GPU or library counts as empty, with a warning.
  GemmCache(const std::string& folder, const std::string& gpu, uint64_t library);

  const std::string& path() const { return path_; }
  /// A lock on PATH.search, so that one process searches at a time. Null if there is no file.
  class SearchLock;
  /// Waits until no other process searches, at most two minutes, and reads its results. The caller searches only for
  /// problems that it still does not find(), and must not wait for other processes while it holds the lock.
  std::shared_ptr<SearchLock> search();

  /// Null if the problem is unknown or was dropped.
  const Entry* find(const std::string& key) const;
  /// Forgets an entry that cannot be used here; the next add() also removes it from the file.
  void drop(const std::string& key);
  /// Adds an entry and writes the file. Entries that other processes added meanwhile are kept; of two entries for a
  /// problem, the one of greater effort wins, otherwise the earlier one. The file is replaced atomically under a lock
  /// that the ranks of a host share. A failure to write is reported once.
  void add(const std::string& key, Entry entry);

 private:
  std::map<std::string, Entry> read_file() const;
  std::string write_file() const;  ///< returns the error; empty on success
  bool make_folder() const;
  void merge(const std::map<std::string, Entry>& others);

  std::string path_, head_;
  std::map<std::string, Entry> entries_;
  std::set<std::string> dropped_;
  bool writable_ = true;
};

}  // namespace te::kernels
