// TensorBoard's event files, written without TensorFlow or protobuf: a run needs two dozen fields of three kinds of
// that format, which are the hundred lines below, where libprotobuf would be one more library and code generator to
// install on every machine that builds te-train, and its ABI one more to match. Tested against TensorBoard's own
// reader.
//
// A file is a row of records: length (uint64), its check sum, payload, its check sum. The check sum is CRC-32C
// (Castagnoli), rotated and offset as in TensorFlow's core/lib/io/record_writer and core/lib/hash/crc32c.h. A payload
// is a message Event of core/util/event.proto (field numbers beside their use below).
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace te::train {

/// A protobuf message in its wire format. Fields must have their numbers of the .proto.
class ProtoMessage {
 public:
  ProtoMessage& integer(int field, int64_t value);
  ProtoMessage& number(int field, double value);
  ProtoMessage& single(int field, float value);
  ProtoMessage& bytes(int field, std::string_view value);
  ProtoMessage& message(int field, const ProtoMessage& value) { return bytes(field, value.text_); }
  ProtoMessage& packed(int field, const std::vector<double>& values);
  const std::string& text() const { return text_; }

 private:
  void key(int field, int wire_type);
  void varint(uint64_t value);
  std::string text_;
};

/// As TFRecord wants it.
uint32_t masked_crc32c(std::string_view data);

/// One value of a Summary: a number, a distribution, or text (Markdown) under a tag.
ProtoMessage scalar_value(std::string_view tag, double value);
/// Values that are not finite do not count; of none the histogram is empty.
ProtoMessage histogram_value(std::string_view tag, const std::vector<double>& values);
ProtoMessage text_value(std::string_view tag, std::string_view markdown);

/// The event files of a folder that te-train wrote, oldest first.
std::vector<std::filesystem::path> event_files(const std::filesystem::path& directory);

class EventFile {
 public:
  /// A new file, behind those that are there by its name. UserError when it cannot be made.
  explicit EventFile(const std::filesystem::path& directory);
  /// Tries once more to write what is still in memory; what cannot be written is lost, with a warning.
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  /// What the folder's files hold of this step and later ones is void: they are taken (again) from here on.
  void start_at(int64_t step);
  void add(int64_t step, const std::vector<ProtoMessage>& values);

  const std::filesystem::path& path() const { return path_; }
  /// Where the disk takes no more, records wait in memory, the newest that fit into so many bytes.
  static constexpr size_t kMaxPending = 16 << 20;

 private:
  void append(const ProtoMessage& event);
  bool write_pending();
  void drop_oldest();

  std::filesystem::path path_;
  int file_ = -1;
  std::deque<std::string> pending_;
  size_t pending_bytes_ = 0;
  size_t written_of_first_ = 0;  ///< bytes of the first pending record that are in the file
  int64_t dropped_ = 0;
  bool failing_ = false;
};

}  // namespace te::train
