// A model without a begin-of-document token, although its vocabulary contains `<s>` as an ordinary token, as Qwen's
// does: texts without a context start after the end-of-document token, as in lm-evaluation-harness.

#include "core/json.h"
#include "generate/evaluation/requests.h"
#include "generate/generator.h"
#include "te_generate_testing.h"

namespace te::testing {
namespace {

using nlohmann::json;

TEST(NoBeginToken, EmptyContextsStartAfterTheEndOfDocumentToken) {
  const std::string fixture = TE_SOURCE_DIR "/tests/fixtures/evaluate/qwen2/";
  json tokenizer = parse_json(read_file(fixture + "tokenizer.json"));
  tokenizer["model"]["vocab"]["<s>"] = tokenizer["model"]["vocab"].size();
  json config = parse_json(read_file(fixture + "tokenizer_config.json"));
  TemporaryFolder folder;
  write_file(folder / "tokenizer.json", tokenizer.dump());
  const std::vector<std::pair<std::string, json>> variants = {
      {"null", nullptr}, {"absent", nullptr}, {"named", "<s>"}};
  for (const auto& [name, bos] : variants) {
    SCOPED_TRACE(name);
    config.erase("bos_token");
    if (name != "absent") config["bos_token"] = bos;
    write_file(folder / "tokenizer_config.json", config.dump());
    const auto made = text::make_tokenizer(folder.path());
    const int32_t before = name == "named" ? *made->find_token("<s>") : made->end_of_document();
    const generate::RequestEncoder encoder(*made, false, made->vocab_size(), 64);
    generate::Task task{.name = "t", .kind = generate::TaskKind::rolling};
    task.documents.push_back({.requests = {{"", "some words"}}});
    EXPECT_EQ(encoder.encode(task, task.documents).at(0).at(0).tokens.at(0), before);
    task.kind = generate::TaskKind::multiple_choice;
    EXPECT_EQ(encoder.encode(task, task.documents).at(0).at(0).tokens.at(0), before);
    const std::vector<int32_t> prompt = generate::Generator::encode(*made, "", {}, 10000, 64);
    EXPECT_EQ(prompt, std::vector<int32_t>{before});
  }
}

// --begin needs a token that such a model does not have.
TEST_F(GenerateFolder, BeginIsRefusedWithoutAToken) {
  expect_refused(run("--checkpoint " TE_SOURCE_DIR "/tests/fixtures/evaluate/qwen2 --begin --prompt a"),
                 "has no begin-of-document token");
}

}  // namespace
}  // namespace te::testing
