// te-generate logits.
#include <sys/stat.h>

#include <filesystem>

#include "checkpoint/safetensors.h"
#include "generate/te_generate_testing.h"

namespace te::testing {
namespace {

namespace fs = std::filesystem;

class TeLogits : public GenerateFolder {};

// Links and pipes keep their names.
TEST_F(TeLogits, ReplaceRegularFilesOnly) {
  {
    const std::vector<int32_t> tokens = {1, 2, 3};
    SafetensorsWriter writer(file("tokens"), {{"tokens", DType::i32, {1, 3}}});
    writer.write("tokens", tokens.data(), tokens.size() * sizeof(int32_t));
    writer.finish();
  }
  const std::string options = std::string("logits --checkpoint ") + TE_SOURCE_DIR +
                              "/tests/fixtures/generate/llama --tokens " + file("tokens") + " --out ";
  fs::create_symlink("logits", file("link"));
  const Result result = run(options + file("link"));
  ASSERT_EQ(result.code, 0) << result.error;
  EXPECT_TRUE(fs::is_symlink(file("link")));
  EXPECT_EQ(SafetensorsReader(file("logits")).at("logits").shape, (std::vector<int64_t>{1, 3, 257}));
  ASSERT_EQ(::mkfifo(file("pipe").c_str(), 0600), 0);
  expect_refused(run(options + file("pipe")), "--out " + file("pipe") + ": is not a regular file");
  EXPECT_TRUE(fs::is_fifo(file("pipe")));
}

}  // namespace
}  // namespace te::testing
