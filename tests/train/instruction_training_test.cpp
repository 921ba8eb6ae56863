// Runs on instruction data: the loss covers the responses, and with data.document_mask packing does not change it.
#include "data/loss_mask.h"
#include "te_train_testing.h"

namespace te {
namespace {

using testing::Documents;
using testing::Result;
using testing::TrainFolder;
using testing::write_dataset;

/// Eight conversations of nine tokens, five of them the response.
void write_conversations(const TrainFolder& folder) {
  Documents tokens, masks;
  uint32_t state = 7;
  for (int i = 0; i < 8; ++i) {
    tokens.emplace_back();
    for (int k = 0; k < 9; ++k) {
      state = state * 1664525u + 1013904223u;
      tokens.back().push_back(static_cast<int32_t>(state >> 24));
    }
    masks.push_back({0, 0, 0, 0, 1, 1, 1, 1, 1});
  }
  write_dataset(folder / "chats", tokens);
  write_dataset(folder / "chats_mask", masks, data::TokenType::kU8);
}

/// One epoch per step, in FP32. seq_length 16 packs two conversations into a sample, 8 has one.
double first_loss(const TrainFolder& folder, const std::string& run, int seq_length, bool document_mask) {
  const std::string samples = std::to_string(64 / seq_length);
  const Result result =
      folder.run(run, {"data.train=" + (folder / "chats"), "data.valid=[]", "data.format=instruct",
                       std::string("data.document_mask=") + (document_mask ? "true" : "false"),
                       "model.seq_length=" + std::to_string(seq_length),
                       "training.micro_batch_size=" + samples, "training.global_batch_size=" + samples,
                       "training.train_steps=2", "precision.dtype=fp32", "checkpoint.save_last=false"});
  EXPECT_EQ(result.code, 0) << result.error << result.out;
  return folder.column(run, "loss").at(0);
}

TEST(InstructionTraining, PackingDoesNotChangeTheLossWithDocumentMask) {
  const TrainFolder folder;
  write_conversations(folder);
  const double alone = first_loss(folder, "alone", 8, false);
  const double packed = first_loss(folder, "packed", 16, true);
  const double mixed = first_loss(folder, "mixed", 16, false);
  // RoPE depends on distances only. FP32 sums of 40 losses near 5.5 in a different order, printed with 6 digits.
  EXPECT_NEAR(packed, alone, 3e-5);
  EXPECT_GT(std::abs(mixed - alone), 1e-4);  // the mask has an effect
}

TEST(InstructionTraining, RoutedPaddingIsReported) {
  const TrainFolder folder;
  write_conversations(folder);
  const auto output = [&](const std::string& run, const std::string& coefficient) {
    const Result result =
        folder.run(run, {"data.train=" + (folder / "chats"), "data.valid=[]", "data.format=instruct",
                         "training.train_steps=1", "model.num_moe_experts=4", "model.moe_router_topk=2",
                         "model.moe_ffn_hidden_size=32", "model.moe_aux_loss_coeff=" + coefficient});
    EXPECT_EQ(result.code, 0) << result.error;
    return result.out;
  };
  TE_EXPECT_CONTAINS(output("a", "0.01"),
                     "is routed to experts and counts in model.moe_aux_loss_coeff: choose");
  EXPECT_EQ(output("b", "0").find("routed"), std::string::npos);
}

TEST(InstructionTraining, NeedsAMask) {
  const TrainFolder folder;
  const Result result = folder.run("a", {"data.format=instruct"});
  EXPECT_EQ(result.code, 2);
  TE_EXPECT_CONTAINS(result.error, "train: has no loss mask");
}

}  // namespace
}  // namespace te
