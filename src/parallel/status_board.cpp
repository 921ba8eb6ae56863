#include "parallel/status_board.h"

#include <bit>

namespace te::parallel {

StatusBoard::StatusBoard(void* memory, int slots)
    : header_(static_cast<Header*>(memory)),
      slot_(reinterpret_cast<Slot*>(static_cast<char*>(memory) + sizeof(Header))),
      slots_(slots) {}

void StatusBoard::publish(int slot, const Status& status) {
  Slot& to = slot_[slot];
  const auto words = std::bit_cast<Words>(status);
  const uint64_t version = to.version.load(std::memory_order_relaxed);
  to.version.store(version + 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  for (size_t i = 0; i < kWords; ++i) to.words[i].store(words[i], std::memory_order_relaxed);
  to.version.store(version + 2, std::memory_order_release);
}

Status StatusBoard::read(int slot) const {
  const Slot& from = slot_[slot];
  Words words{};
  // A rank that is killed during a write leaves an odd version. After some attempts the words are used as they are,
  // which is sufficient for a message.
  for (int attempt = 0; attempt < 1000; ++attempt) {
    const uint64_t before = from.version.load(std::memory_order_acquire);
    if (before == 0) return {};
    for (size_t i = 0; i < kWords; ++i) words[i] = from.words[i].load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (before % 2 == 0 && from.version.load(std::memory_order_relaxed) == before) break;
  }
  auto status = std::bit_cast<Status>(words);
  status.operation[sizeof(status.operation) - 1] = '\0';
  status.group[sizeof(status.group) - 1] = '\0';
  status.guard[sizeof(status.guard) - 1] = '\0';
  status.activity[sizeof(status.activity) - 1] = '\0';
  return status;
}

bool StatusBoard::claim_report() {
  return header_->claimed.exchange(1) == 0;
}

}  // namespace te::parallel
