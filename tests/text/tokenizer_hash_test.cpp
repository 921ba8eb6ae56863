// The hash by which a run checks that a dataset was created with its tokenizer.
#include "text/tokenizer_hash.h"
#include "core/json.h"

#include <gtest/gtest.h>

#include "testing/files.h"
#include "testing/temporary_folder.h"

namespace te {
namespace {

using nlohmann::json;

class TokenizerHash : public ::testing::Test {
 protected:
  std::string hash_of(const json& tokenizer) {
    testing::write_file(folder_ / "tokenizer.json", tokenizer.dump(7));
    return hash();
  }
  std::string hash() { return text::tokenizer_hash(*text::make_tokenizer(folder_ / "tokenizer.json")); }
  testing::TextFolder folder_;
  const json gpt2_ =
      parse_json(testing::read_file(TE_SOURCE_DIR "/tests/fixtures/tokenizers/gpt2_style.json"));
};

// Existing datasets record the hash, so it must not change.
TEST_F(TokenizerHash, DoesNotChange) {
  EXPECT_EQ(text::tokenizer_hash(*text::make_tokenizer("bytes")), "xxh3:d35c76f22e09297b");
}

TEST_F(TokenizerHash, DependsOnTheTokensNotOnTheFile) {
  testing::write_file(folder_ / "tokenizer.json", gpt2_.dump());
  const std::string compact = hash();
  EXPECT_EQ(hash_of(gpt2_), compact);
  // The models of a family can differ in the end-of-document token only.
  testing::write_file(folder_ / "generation_config.json", R"({"eos_token_id": 5})");
  EXPECT_EQ(text::make_tokenizer(folder_ / "tokenizer.json")->end_of_document(), 5);
  EXPECT_EQ(hash(), compact);
}

TEST_F(TokenizerHash, ChangesWithVocabularyMergesAndSplitting) {
  const std::string whole = hash_of(gpt2_);
  json changed = gpt2_;
  auto& vocab = changed["model"]["vocab"];
  std::swap(vocab["a"], vocab["b"]);
  EXPECT_NE(hash_of(changed), whole);
  changed = gpt2_;
  changed["model"]["merges"] = json::array();
  EXPECT_NE(hash_of(changed), whole);
  changed = gpt2_;
  changed["pre_tokenizer"]["add_prefix_space"] = !changed["pre_tokenizer"].value("add_prefix_space", false);
  EXPECT_NE(hash_of(changed), whole);
}

}  // namespace
}  // namespace te
