// te-generate writes unchanged bytes to a file or a pipe, but escapes control characters on a terminal. It takes texts
// from the command line as they are, and refuses options where no command reads them.
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

TEST_F(GeneratedText, BracketsOfAPromptAreNoList) {
  const std::string model =
      "--checkpoint " TE_SOURCE_DIR
      "/tests/fixtures/generate/llama --tokenizer bytes --device cpu --quiet --max-tokens 4 ";
  const Result echoed = run(model + "--echo --prompt '[INST] Hi, you [/INST]'");
  EXPECT_EQ(echoed.code, 0) << echoed.error;
  EXPECT_TRUE(echoed.out.starts_with("[INST] Hi, you [/INST]")) << echoed.out;
  const std::string text = run(model + "--prompt a").out;
  ASSERT_GE(text.size(), 2u);
  EXPECT_EQ(run(model + "--prompt a --stop '[" + text.substr(0, 1) + "]'").out, text);
}

TEST_F(GeneratedText, OptionsBeforeASubcommandAreRefused) {
  expect_refused(run("--temperature 1 --seed 3 chat --checkpoint x"),
                 "--temperature before chat has no effect; put it after chat");
  expect_refused(run("--checkpoint x chat"), "--checkpoint before chat has no effect; put it after chat");
  expect_refused(run("--echo divergence --checkpoint x --reference y --text z"),
                 "--echo before divergence has no effect; leave it out");
  expect_refused(run("--system x chat --checkpoint y"), "unknown option --system; put it after chat");
}

}  // namespace
}  // namespace te::testing
