#include "train/event_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "core/strings.h"

namespace te::train {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "events.out.tfevents.", kSuffix = ".te-train";
enum WireType { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

template <class T>
void append_little_endian(std::string& text, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) text += static_cast<char>(value >> (8 * i) & 0xff);
}

constexpr std::array<uint32_t, 256> crc_table() {
  std::array<uint32_t, 256> table = {};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78u : 0u);
    table[i] = crc;
  }
  return table;
}

int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

ProtoMessage event(int64_t step) {
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  return ProtoMessage().number(1, now).integer(2, step);  // wall_time, step
}

// Readers process the files of a folder in the order of their names.
fs::path new_file(const fs::path& directory) {
  int64_t seconds = unix_seconds();
  for (const fs::path& file : event_files(directory)) {
    const std::string name = file.filename();
    seconds = std::max<int64_t>(seconds, std::strtoll(name.c_str() + kPrefix.size(), nullptr, 10) + 1);
  }
  return directory / fmt::format("{}{:010}.{}.{}{}", kPrefix, seconds, host_name(), ::getpid(), kSuffix);
}

RecordFile open_new_file(const fs::path& directory) {
  const fs::path path = new_file(directory);
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
  if (file < 0) {
    user_error("logging.directory: {}: {}; check the folder's permissions", path.string(),
               std::strerror(errno));
  }
  return {path, file, "records"};
}

}  // namespace

// --- protobuf's wire format ----------------------------------------------------------------------------------

void ProtoMessage::varint(uint64_t value) {
  for (; value >= 0x80; value >>= 7) text_ += static_cast<char>((value & 0x7f) | 0x80);
  text_ += static_cast<char>(value);
}

void ProtoMessage::key(int field, int wire_type) {
  varint(static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(wire_type));
}

ProtoMessage& ProtoMessage::integer(int field, int64_t value) {
  key(field, kVarint);
  varint(static_cast<uint64_t>(value));
  return *this;
}

ProtoMessage& ProtoMessage::number(int field, double value) {
  key(field, kFixed64);
  append_little_endian(text_, std::bit_cast<uint64_t>(value));
  return *this;
}

ProtoMessage& ProtoMessage::single(int field, float value) {
  key(field, kFixed32);
  append_little_endian(text_, std::bit_cast<uint32_t>(value));
  return *this;
}

ProtoMessage& ProtoMessage::bytes(int field, std::string_view value) {
  key(field, kBytes);
  varint(value.size());
  text_ += value;
  return *this;
}

ProtoMessage& ProtoMessage::packed(int field, const std::vector<double>& values) {
  std::string all;
  for (const double value : values) append_little_endian(all, std::bit_cast<uint64_t>(value));
  return bytes(field, all);
}

uint32_t masked_crc32c(std::string_view data) {
  static constexpr std::array<uint32_t, 256> kTable = crc_table();
  uint32_t crc = 0xFFFFFFFFu;
  for (const char c : data) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<uint8_t>(c)) & 0xff];
  return std::rotr(~crc, 15) + 0xa282ead8u;
}

// --- values of a Summary --------------------------------------------------------------------------------------

ProtoMessage scalar_value(std::string_view tag, double value) {
  return ProtoMessage().bytes(1, tag).single(2, static_cast<float>(value));  // tag, simple_value
}

ProtoMessage histogram_value(std::string_view tag, const std::vector<double>& values) {
  std::vector<double> finite;
  std::copy_if(values.begin(), values.end(), std::back_inserter(finite),
               [](double v) { return std::isfinite(v); });
  double low = 0, high = 0, sum = 0, squares = 0;
  if (!finite.empty()) {
    const auto [min, max] = std::ranges::minmax_element(finite);
    low = *min, high = *max;
  }
  const size_t buckets = high > low ? 30 : 1;
  const double width = (high - low) / static_cast<double>(buckets);
  std::vector<double> limits(buckets, high), counts(buckets, 0.0);
  for (size_t i = 0; i + 1 < buckets; ++i) limits[i] = low + width * static_cast<double>(i + 1);
  for (const double value : finite) {
    const size_t bucket = high > low ? static_cast<size_t>((value - low) / width) : 0;
    counts[std::min(bucket, buckets - 1)] += 1;
    sum += value;
    squares += value * value;
  }
  ProtoMessage histogram;  // min, max, num, sum, sum_squares, bucket_limit, bucket
  histogram.number(1, low).number(2, high).number(3, static_cast<double>(finite.size())).number(4, sum);
  histogram.number(5, squares).packed(6, limits).packed(7, counts);
  return ProtoMessage().bytes(1, tag).message(5, histogram);  // tag, histo
}

ProtoMessage text_value(std::string_view tag, std::string_view markdown) {
  constexpr int kString = 7;                                        // DT_STRING
  const ProtoMessage plugin = ProtoMessage().bytes(1, "text");      // plugin_name
  const ProtoMessage metadata = ProtoMessage().message(1, plugin);  // plugin_data
  ProtoMessage tensor;  // dtype, tensor_shape (a scalar), string_val
  tensor.integer(1, kString).message(2, ProtoMessage()).bytes(8, markdown);
  return ProtoMessage().bytes(1, tag).message(8, tensor).message(9, metadata);  // tag, tensor, metadata
}

// --- the file -------------------------------------------------------------------------------------------------

std::vector<fs::path> event_files(const fs::path& directory) {
  std::vector<fs::path> files;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(directory, ignored)) {
    const std::string name = entry.path().filename();
    if (name.starts_with(kPrefix) && name.ends_with(kSuffix)) files.push_back(entry.path());
  }
  std::ranges::sort(files);
  return files;
}

EventFile::EventFile(const fs::path& directory) : file_(open_new_file(directory)) {
  append(event(0).bytes(3, "brain.Event:2"));  // file_version
}

void EventFile::start_at(int64_t step) {
  constexpr int kStart = 1;
  append(event(step).message(7, ProtoMessage().integer(1, kStart)));  // session_log: status
}

void EventFile::add(int64_t step, const std::vector<ProtoMessage>& values) {
  if (values.empty()) return;
  ProtoMessage summary;
  for (const ProtoMessage& value : values) summary.message(1, value);
  append(event(step).message(5, summary));
}

void EventFile::append(const ProtoMessage& event) {
  std::string record, check;
  append_little_endian(record, uint64_t{event.text().size()});
  append_little_endian(record, masked_crc32c(record));
  record += event.text();
  append_little_endian(record, masked_crc32c(event.text()));
  file_.append(std::move(record));
}

}  // namespace te::train
