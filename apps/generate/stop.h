// Ctrl-C during generation: the text ends there, and the part so far is printed.
#pragma once

#include <csignal>

namespace te::generate {

inline volatile std::sig_atomic_t stop_requested = 0;  ///< 1 after Ctrl-C

inline void stop_on_interrupt() {
  std::signal(SIGINT, [](int) { stop_requested = 1; });
}

}  // namespace te::generate
