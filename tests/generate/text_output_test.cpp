// te-generate writes unchanged bytes to a file or a pipe, but escapes control characters on a terminal.
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

#include "te_generate_testing.h"

namespace te::testing {
namespace {

class GeneratedText : public GenerateFolder {
 protected:
  /// Arguments that echo a prompt with control characters, which a model could also generate.
  std::string arguments() const {
    write_file(file("prompt"), "\x1b[31mred\x07 \xc2\x9b\x32J\tand\nso \u00e9\x7f");
    return "--checkpoint " TE_SOURCE_DIR
           "/tests/fixtures/generate/llama --tokenizer bytes --device cpu --quiet --echo --max-tokens 1 "
           "--stop e --prompt-file " +
           file("prompt");
  }
  std::string on_terminal(const std::string& command) const {
    int terminal = -1;
    const pid_t child = ::forkpty(&terminal, nullptr, nullptr, nullptr);
    if (child == 0) {
      ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      ::_exit(127);
    }
    std::string text;
    std::array<char, 4096> block = {};
    for (ssize_t bytes = 0; (bytes = ::read(terminal, block.data(), block.size())) > 0;)
      text.append(block.data(), static_cast<size_t>(bytes));
    int status = 0;
    ::waitpid(child, &status, 0);
    ::close(terminal);
    EXPECT_EQ(status, 0) << text;
    std::erase(text, '\r');
    return text;
  }
};

TEST_F(GeneratedText, IsEscapedOnATerminal) {
  const Result piped = run(arguments());
  ASSERT_EQ(piped.code, 0) << piped.error;
  TE_EXPECT_CONTAINS(piped.out, "\x1b[31mred\x07 \xc2\x9b\x32J\tand\nso \u00e9\x7f");
  const std::string shown = on_terminal("stty -opost; exec " TE_GENERATE_EXECUTABLE " " + arguments());
  TE_EXPECT_CONTAINS(shown, "\\x1b[31mred\\x07 \\xc2\\x9b2J\tand\nso \u00e9\\x7f");
  for (const char c : {'\x1b', '\x07', '\x7f'}) EXPECT_EQ(shown.find(c), std::string::npos) << shown;
}

}  // namespace
}  // namespace te::testing
