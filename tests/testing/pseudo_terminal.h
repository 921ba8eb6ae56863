// Runs commands on a pseudo-terminal.
#pragma once

#include <gtest/gtest.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <string>

namespace te::testing {

/// Everything that a shell command prints to a terminal of this width, without carriage returns; expects exit code 0.
inline std::string on_terminal(const std::string& command, unsigned short columns = 80) {
  struct winsize window = {};
  window.ws_col = columns;
  window.ws_row = 40;
  int terminal = -1;
  const pid_t child = ::forkpty(&terminal, nullptr, nullptr, &window);
  if (child == 0) {
    ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    ::_exit(127);
  }
  std::string text;
  std::array<char, 4096> block = {};
  for (ssize_t bytes = 0; (bytes = ::read(terminal, block.data(), block.size())) > 0;)
    text.append(block.data(), static_cast<size_t>(bytes));
  int status = -1;
  ::waitpid(child, &status, 0);
  ::close(terminal);
  EXPECT_EQ(status, 0) << text;
  std::erase(text, '\r');
  return text;
}

}  // namespace te::testing
