// Distances of mistyped names from candidates.
#include "core/suggest.h"

#include <gtest/gtest.h>

namespace te {
namespace {

TEST(Suggest, SwapIsOneEdit) {
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("modle", "model"), 1);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
}

TEST(Suggest, IgnoresSeparatorsAndCase) {
  EXPECT_EQ(name_distance("--dryrun", "--dry-run"), 0);
  EXPECT_EQ(name_distance("--max_tokens", "--max-tokens"), 0);
  EXPECT_EQ(name_distance("Num.Layers", "num_layers"), 0);
}

TEST(Suggest, AllowedEditsDependOnTheLength) {
  EXPECT_EQ(name_distance("tokenise", "tokenize"), 100);
  EXPECT_EQ(name_distance("pf8", "fp8"), 100);
  EXPECT_EQ(name_distance("nlayers", "num_layers"), 200);
  EXPECT_EQ(name_distance("dir", "lr"), std::nullopt);  // two edits in three letters
  EXPECT_EQ(name_distance("ls", "lr"), std::nullopt);
  EXPECT_EQ(name_distance("", "lr"), std::nullopt);
  EXPECT_EQ(name_distance("zq", "schedule"), std::nullopt);
}

TEST(Suggest, AbbreviationsAndExtraWords) {
  EXPECT_LT(*name_distance("dir", "directory"), 200);
  EXPECT_EQ(name_distance("dir", "directory", false),
            std::nullopt);  // too short for other sections
  EXPECT_LT(*name_distance("n_head", "num_attention_heads", false), 200);
  EXPECT_LT(*name_distance("batch_size", "micro_batch_size"),
            *name_distance("batch_size", "global_batch_size"));
  EXPECT_LT(*name_distance("--max-new-tokens", "--max-tokens"), 200);
  EXPECT_LT(*name_distance("adam_beta1", "beta1"), 200);
  EXPECT_EQ(name_distance("adam_beta1", "beta1", false), std::nullopt);
  EXPECT_LT(*name_distance("--output", "--out"), 200);
  EXPECT_EQ(name_distance("output", "out", false), std::nullopt);
}

TEST(Suggest, QuestionHasAllEquallyNearNames) {
  NearestNames names;
  EXPECT_TRUE(names.empty());
  names.add("far", 200);
  names.add("a", 50);
  names.add("b", 50);
  names.add("a", 50);
  names.add("farther", 300);
  EXPECT_EQ(names.distance(), 50);
  EXPECT_EQ(names.question(), "did you mean 'a' or 'b'?");
  names.add("c", 50);
  names.add("d", 50);
  EXPECT_EQ(names.question(""), "did you mean a, b or c?");
}

}  // namespace
}  // namespace te
