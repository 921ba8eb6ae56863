// Writes TensorBoard event files without TensorFlow or protobuf. te-train needs some two dozen fields of the format,
// and libprotobuf would add a build dependency with its own ABI. Tested against TensorBoard's reader.
//
// A file is a sequence of records: length (uint64), checksum of the length, payload, checksum of the payload. The
// checksum is CRC-32C (Castagnoli), rotated and offset as in TensorFlow's core/lib/io/record_writer and
// core/lib/hash/crc32c.h. A payload is an Event message of core/util/event.proto; the field numbers stand next to their
// use.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "train/record_file.h"

namespace te::train {

/// A protobuf message in wire format. Field numbers are those of the .proto file.
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

/// CRC-32C masked as in TFRecord.
uint32_t masked_crc32c(std::string_view data);

/// One value of a Summary: a number, a histogram, or text (Markdown), with a tag.
ProtoMessage scalar_value(std::string_view tag, double value);
/// Values that are not finite are ignored; without finite values the histogram is empty.
ProtoMessage histogram_value(std::string_view tag, const std::vector<double>& values);
ProtoMessage text_value(std::string_view tag, std::string_view markdown);

/// The event files of a folder that te-train wrote, oldest first.
std::vector<std::filesystem::path> event_files(const std::filesystem::path& directory);

class EventFile {
 public:
  /// Creates a new file whose name sorts after the existing ones. UserError when it cannot be created.
  explicit EventFile(const std::filesystem::path& directory);
  /// Marks events of this step and later ones in the folder's files as void, as these steps are repeated from here.
  void start_at(int64_t step);
  void add(int64_t step, const std::vector<ProtoMessage>& values);

  const std::filesystem::path& path() const { return file_.path(); }

 private:
  void append(const ProtoMessage& event);

  RecordFile file_;
};

}  // namespace te::train
