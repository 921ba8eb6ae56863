#include "train/record_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/log.h"

namespace te::train {

RecordFile::RecordFile(std::filesystem::path path, int file, const char* noun)
    : path_(std::move(path)), file_(file), noun_(noun) {}

RecordFile::~RecordFile() {
  if (!write_pending())
    log_warning("{}: {} {} are lost: {}", path_.string(), dropped_ + static_cast<int64_t>(pending_.size()),
                noun_, std::strerror(errno));
  ::close(file_);
}

void RecordFile::append(std::string record) {
  pending_bytes_ += record.size();
  pending_.push_back(std::move(record));
  if (!write_pending()) {
    if (!failing_)
      log_warning("{}: cannot be written: {}; training continues, and {} wait in memory for disk space",
                  path_.string(), std::strerror(errno), noun_);
    failing_ = true;
    drop_oldest();
  } else if (failing_) {
    log_info("{}: writing again; {} {} are missing", path_.string(), dropped_, noun_);
    failing_ = false;
    dropped_ = 0;
  }
}

void RecordFile::truncated(const std::function<bool(std::string_view)>& keep) {
  written_of_first_ = 0;  // the beginning of a record was removed from the file
  std::erase_if(pending_, [&](const std::string& record) { return !keep(record); });
  pending_bytes_ = 0;
  for (const std::string& record : pending_) pending_bytes_ += record.size();
}

bool RecordFile::write_pending() {
  while (!pending_.empty()) {
    const std::string& record = pending_.front();
    const ssize_t written =
        ::write(file_, record.data() + written_of_first_, record.size() - written_of_first_);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    written_of_first_ += static_cast<size_t>(written);
    if (written_of_first_ < record.size()) continue;
    pending_bytes_ -= record.size();
    pending_.pop_front();
    written_of_first_ = 0;
  }
  return true;
}

// A partly written record must stay: without its rest, readers cannot read what follows.
void RecordFile::drop_oldest() {
  const size_t keep = written_of_first_ > 0 ? 1 : 0;
  while (pending_bytes_ > kMaxPending && pending_.size() > keep + 1) {
    const auto oldest = pending_.begin() + static_cast<std::ptrdiff_t>(keep);
    pending_bytes_ -= oldest->size();
    pending_.erase(oldest);
    ++dropped_;
  }
}

}  // namespace te::train
