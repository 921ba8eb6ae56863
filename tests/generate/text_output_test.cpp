// te-generate writes unchanged bytes to a file or a pipe, but escapes control characters on a terminal.
#include "te_generate_testing.h"
#include "testing/pseudo_terminal.h"

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
