// Event files: the binary format, a full disk, names. tensorboard_test.py reads a run's file with TensorBoard.
#include "train/event_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>

#include "core/error.h"
#include "data/data_testing.h"

namespace te::train {
namespace {

using testing::read_file;
using testing::TextFolder;

/// The payloads of a file's records; fails if lengths or checksums do not match.
std::vector<std::string> records(const std::string& path) {
  const std::string data = read_file(path);
  std::vector<std::string> found;
  for (size_t at = 0; at < data.size();) {
    uint64_t length = 0;
    uint32_t check = 0;
    if (at + 16 > data.size()) return ADD_FAILURE() << "half a record", found;
    std::memcpy(&length, data.data() + at, sizeof(length));
    std::memcpy(&check, data.data() + at + 8, sizeof(check));
    EXPECT_EQ(check, masked_crc32c(data.substr(at, 8)));
    if (at + 16 + length > data.size()) return ADD_FAILURE() << "half a record", found;
    found.push_back(data.substr(at + 12, length));
    std::memcpy(&check, data.data() + at + 12 + length, sizeof(check));
    EXPECT_EQ(check, masked_crc32c(found.back()));
    at += 16 + length;
  }
  return found;
}

// The check value of CRC-32C (RFC 3720), masked by the formula.
TEST(EventFormat, CheckSum) {
  const uint32_t crc = 0xE3069283u;
  EXPECT_EQ(masked_crc32c("123456789"), ((crc >> 15) | (crc << 17)) + 0xa282ead8u);
}

// As written by `protoc --encode`.
TEST(EventFormat, Fields) {
  EXPECT_EQ(ProtoMessage().integer(2, 300).text(), std::string("\x10\xac\x02", 3));
  EXPECT_EQ(ProtoMessage().integer(1, -1).text(), "\x08" + std::string(9, '\xff') + "\x01");
  EXPECT_EQ(ProtoMessage().bytes(3, "ab").text(),
            "\x1a\x02"
            "ab");
  EXPECT_EQ(ProtoMessage().number(1, 1.0).text(), std::string("\x09\0\0\0\0\0\0\xf0\x3f", 9));
  EXPECT_EQ(ProtoMessage().single(2, 1.0f).text(), std::string("\x15\0\0\x80\x3f", 5));
  EXPECT_EQ(ProtoMessage().message(5, ProtoMessage().integer(1, 1)).text(), "\x2a\x02\x08\x01");
}

class Events : public ::testing::Test {
 protected:
  Events() { std::signal(SIGXFSZ, SIG_IGN); }
  ~Events() override { limit(RLIM_INFINITY); }
  static void limit(rlim_t bytes) {
    const struct rlimit limits = {bytes, RLIM_INFINITY};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limits), 0);
  }
  std::string directory() const { return folder_ / "."; }
  TextFolder folder_;
};

// Three starts within one second; other files are ignored.
TEST_F(Events, FilesAreInStartOrder) {
  std::vector<std::filesystem::path> paths;
  for (int i = 0; i < 3; ++i) paths.push_back(EventFile(directory()).path());
  testing::write_file(folder_ / "events.out.tfevents.9999999999.host.1.other", "");
  EXPECT_EQ(event_files(directory()), paths);
  EXPECT_THROW(EventFile(folder_ / "none"), UserError);
}

TEST_F(Events, RecordsWaitForDiskSpace) {
  std::string path;
  {
    EventFile file(directory());
    path = file.path();
    file.add(1, {scalar_value("a", 1)});
    const auto size = static_cast<rlim_t>(std::filesystem::file_size(path));
    limit(size + 20);  // within a record
    for (int64_t step = 2; step <= 4; ++step) file.add(step, {scalar_value("a", 2)});
    EXPECT_EQ(std::filesystem::file_size(path), size + 20);
    limit(RLIM_INFINITY);
    file.add(5, {scalar_value("a", 3)});
    EXPECT_EQ(records(path).size(), 6u);
    limit(static_cast<rlim_t>(std::filesystem::file_size(path)));
    file.add(6, {scalar_value("a", 3)});
    limit(RLIM_INFINITY);
  }
  EXPECT_EQ(records(path).size(), 7u);  // everything is written at the end
}

TEST_F(Events, OldestRecordsAreDropped) {
  const std::string text(1 << 20, 'z');
  std::string path;
  {
    EventFile file(directory());
    path = file.path();
    limit(std::filesystem::file_size(path) + 9);
    for (int64_t step = 1; step <= 40; ++step) file.add(step, {text_value("a", text + std::to_string(step))});
    limit(RLIM_INFINITY);
    file.add(41, {scalar_value("a", 1)});
  }
  const std::vector<std::string> kept = records(path);
  ASSERT_GE(kept.size(), 4u);
  EXPECT_LE(kept.size(), RecordFile::kMaxPending / text.size() + 3);
  EXPECT_NE(kept[1].find("z1"), std::string::npos);  // was half written
  EXPECT_NE(kept[kept.size() - 2].find("z40"), std::string::npos);
}

}  // namespace
}  // namespace te::train
