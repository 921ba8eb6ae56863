// Progress of a command on standard error: on a terminal one line that is rewritten twice a second, else a new line
// every ten seconds.
#pragma once

#include <cstdint>
#include <string>

#include "common/command_line.h"
#include "core/clock.h"

namespace te::apps {

class Progress {
 public:
  /// `total_bytes`: the final value of show(), for the bar and the remaining time; 0 or less if unknown. `done` is the
  /// participle printed after the bytes: "read", "written".
  explicit Progress(int64_t total_bytes = 0, const char* done = "read") : total_(total_bytes), done_(done) {}
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `detail` returns the result so far as text; it is called only if a line is due. Also checks for interruption.
  template <class Detail>
  void show(int64_t bytes, Detail detail) {
    check_interrupted();
    if (due()) print(bytes, detail() + ", ");
  }
  void show(int64_t bytes) {
    check_interrupted();
    if (due()) print(bytes, "");
  }
  double seconds() const { return now_seconds() - start_; }

 private:
  bool due();
  void print(int64_t bytes, const std::string& detail);
  static bool is_terminal();

  int64_t total_;
  const char* done_;
  bool terminal_ = is_terminal();
  bool shown_ = false;
  double start_ = now_seconds(), last_ = start_;
};

}  // namespace te::apps
