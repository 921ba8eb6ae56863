// How far a command has come, on standard error: one line, rewritten twice a second on a terminal, a new one every ten
// seconds elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "common/command_line.h"

namespace te::apps {

class Progress {
 public:
  /// `total_bytes`: what show() counts up to, for bar and remaining time; not positive when unknown. `done` says what
  /// happens to the bytes: "read", "written".
  explicit Progress(int64_t total_bytes = 0, const char* done = "read") : total_(total_bytes), done_(done) {}
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `detail` says what came out of the bytes; it is only called when a line is due. Also checks for
  /// interruption.
  template <class Detail>
  void show(int64_t bytes, Detail detail) {
    check_interrupted();
    if (due()) print(bytes, detail() + ", ");
  }
  void show(int64_t bytes) {
    check_interrupted();
    if (due()) print(bytes, "");
  }
  double seconds() const;

 private:
  bool due();
  void print(int64_t bytes, const std::string& detail);
  static bool is_terminal();

  int64_t total_;
  const char* done_;
  bool terminal_ = is_terminal();
  bool shown_ = false;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now(), last_ = start_;
};

}  // namespace te::apps
