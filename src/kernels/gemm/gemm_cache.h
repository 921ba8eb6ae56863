// The file in which the choices of GEMM algorithms are kept from one process to the next: one file
// per GPU model and library version, since an algorithm means nothing to another. It is a cache: deleting it
// costs the time to choose again, and nothing in it is trusted without a check.
//
//   te-train gemm algorithms 1
//   gpu NVIDIA H200
//   library 130101
//   KEY<tab>EFFORT<tab>ALGORITHM in hexadecimal       a line per problem, sorted
//   checksum FNV-1A (64 bits) OF ALL LINES ABOVE
//
// Processes that share the file compute the same bits: whoever meets a problem first chooses for all, also for those
// that meet it at the same time (search()), and what was taken without a search is written, too. This holds on file
// systems without locks, too; where the file cannot be written at all, a warning says that bits may differ.
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
    int effort = 0;  ///< how thorough the search was, 0: none; a greater one replaces a smaller one
    std::vector<uint8_t> algorithm;
    bool operator==(const Entry&) const = default;
  };

  /// $TE_GEMM_CACHE, $XDG_CACHE_HOME/te-train or $HOME/.cache/te-train; of the latter two only absolute paths count.
  /// Empty when no variable names a folder.
  static std::string default_folder();

  /// Reads the file of this GPU and library in `folder` (empty: nothing is kept). A file that is damaged, or
  /// of another GPU or library, counts as empty, with a warning.
  GemmCache(const std::string& folder, const std::string& gpu, uint64_t library);

  const std::string& path() const { return path_; }
  /// A lock on PATH.search: its holder alone searches. Empty where there is no file, or none that can be locked.
  class SearchLock;
  /// Waits until no other process searches, and reads what it has found. The caller searches only for what it still
  /// does not find(), and waits for no other process while it holds the lock.
  std::shared_ptr<SearchLock> search();

  /// Null when the problem is not known, or has been dropped.
  const Entry* find(const std::string& key) const;
  /// The entry cannot be used here: forgets it, and at the next add() the file does, too.
  void drop(const std::string& key);
  /// Adds an entry and writes the file: what other processes added meanwhile is kept, of two entries for a
  /// problem the one of greater effort, else the one that was there first. The file is replaced atomically
  /// under a lock that the ranks of a host share. A file that cannot be written is warned of once.
  void add(const std::string& key, Entry entry);

 private:
  std::map<std::string, Entry> read_file() const;
  std::string write_file() const;  ///< what went wrong; empty: nothing
  bool make_folder() const;
  void merge(const std::map<std::string, Entry>& others);

  std::string path_, head_;
  std::map<std::string, Entry> entries_;
  std::set<std::string> dropped_;
  bool writable_ = true;
};

}  // namespace te::kernels
