// te-generate on a checkpoint that te-convert import makes.
#include "data/loss_mask.h"
#include "generate/te_generate_testing.h"

namespace te::testing {
namespace {

class ImportedCheckpoint : public GenerateFolder {};

// Conversations of 8 tokens with a loss on the last three, two in each sample of the run.
TEST_F(ImportedCheckpoint, HasThePerplexityOfItsRunAndFolder) {
  const TrainFolder train;
  const std::string prefix = train / "chat";
  write_dataset(prefix, {{116, 104, 101, 32, 115, 109, 97, 256}, {111, 110, 101, 32, 116, 119, 111, 256}});
  write_dataset(data::loss_mask_prefix(prefix), {{0, 0, 0, 0, 0, 1, 1, 1}, {0, 0, 0, 0, 0, 1, 1, 1}},
                data::TokenType::kU8);
  testing::run(train, "chat",
               {"data.format=instruct", "data.document_mask=true", "data.tokenizer=bytes",
                "data.train=" + prefix, "optimizer.lr=0.02"});
  const std::string folder = file("folder"), imported = file("imported");
  ASSERT_EQ(std::system((TE_CONVERT_EXECUTABLE " export " + train.run_folder("chat") + " --out " + folder +
                         " >" + file("log") + " 2>&1 && " TE_CONVERT_EXECUTABLE " import " + folder +
                         " --out " + imported + " >>" + file("log") + " 2>&1")
                            .c_str()),
            0)
      << read_file(file("log"));
  const auto loss = [&](const std::string& checkpoint) {
    const Result result = run("perplexity --seq-length 16 --data " + prefix + " --checkpoint " + checkpoint);
    EXPECT_EQ(result.code, 0) << result.error;
    TE_EXPECT_CONTAINS(result.out, ", attention within documents");
    const size_t begin = std::min(result.out.find("loss  "), result.out.size());
    return result.out.substr(begin, result.out.find('\n', begin) - begin);
  };
  const std::string trained = loss(train.run_folder("chat"));
  EXPECT_FALSE(trained.empty());
  EXPECT_EQ(loss(folder), trained);
  EXPECT_EQ(loss(imported), trained);
}

}  // namespace
}  // namespace te::testing
