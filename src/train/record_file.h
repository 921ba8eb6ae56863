// A file of records (lines, events) that outlasts a full disk: records that cannot be written wait in memory.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace te::train {

class RecordFile {
 public:
  /// Takes over `file`, a descriptor that appends. `noun`, such as "lines", names the records in messages.
  RecordFile(std::filesystem::path path, int file, const char* noun);
  /// Tries once more to write pending records; those that cannot be written are lost, with a warning.
  ~RecordFile();
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;

  /// Appends a record. While the disk is full the newest kMaxPending bytes stay in memory and are retried at the next
  /// call; one warning is printed.
  void append(std::string record);
  /// After the file was truncated at the end of a record: discards the pending records that `keep` rejects.
  void truncated(const std::function<bool(std::string_view)>& keep);
  const std::filesystem::path& path() const { return path_; }

  static constexpr size_t kMaxPending = 16 << 20;

 private:
  bool write_pending();
  void drop_oldest();

  std::filesystem::path path_;
  int file_;
  const char* noun_;
  std::deque<std::string> pending_;
  size_t pending_bytes_ = 0;
  size_t written_of_first_ = 0;  ///< bytes of the first pending record already in the file
  int64_t dropped_ = 0;
  bool failing_ = false;
};

}  // namespace te::train
