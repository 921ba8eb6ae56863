// Ctrl-C during generation: the text ends there, and the part so far is printed. A second Ctrl-C ends the process.
#pragma once

#include <csignal>

namespace te::generate {

inline volatile std::sig_atomic_t stop_requested = 0;  ///< 1 after Ctrl-C

/// Returns the previous handler.
inline auto stop_on_interrupt() {
  return std::signal(SIGINT, [](int) {
    stop_requested = 1;
    std::signal(SIGINT, SIG_DFL);
  });
}

}  // namespace te::generate
