// Runs on instruction data: the loss covers the responses, and with data.document_mask packing does not change it.
#include "data/loss_mask.h"
#include "te_train_testing.h"

namespace te {
namespace {

using testing::Documents;
using testing::operator+;
using testing::Overrides;
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

/// Three steps of one epoch each, every conversation in a sample of its own: 6 to 8 positions of 8 or 11.
TEST(InstructionTraining, PaddingSelectsNoExperts) {
  const TrainFolder folder;
  Documents tokens, masks;
  for (int i = 0; i < 8; ++i) {
    const size_t length = 7 + static_cast<size_t>(i * i) % 3;
    tokens.emplace_back(), masks.emplace_back(length, 1);
    for (size_t k = 0; k < length; ++k)
      tokens.back().push_back(static_cast<int32_t>((37 * i + 11 * k) % 256));
  }
  write_dataset(folder / "chats", tokens);
  write_dataset(folder / "chats_mask", masks, data::TokenType::kU8);
  const auto train = [&](const std::string& run, int seq_length, int micro_batch, const Overrides& more) {
    const Result result = folder.run(
        run,
        Overrides{"data.train=" + (folder / "chats"), "data.valid=" + (folder / "chats"),
                  "data.format=instruct", "model.seq_length=" + std::to_string(seq_length),
                  "training.micro_batch_size=" + std::to_string(micro_batch), "training.global_batch_size=8",
                  "training.train_steps=3", "training.eval_interval=3", "precision.dtype=fp32",
                  "checkpoint.save_last=false", "model.num_moe_experts=4", "model.moe_router_topk=2",
                  "model.moe_ffn_hidden_size=32", "model.moe_aux_loss_coeff=0.1",
                  "model.moe_z_loss_coeff=0.01", "model.moe_router_enable_expert_bias=true"} +
            more);
    EXPECT_EQ(result.code, 0) << result.error << result.out;
    EXPECT_EQ(folder.csv(run).size(), 3u);
  };
  const auto expect_equal = [&](const std::string& actual, const std::string& expected) {
    for (const std::string column : {"loss", "grad_norm"})
      for (size_t i = 0; i < 3; ++i) {
        const double value = folder.column(expected, column).at(i);
        EXPECT_NEAR(folder.column(actual, column).at(i), value, 1e-4 * value) << actual << " " << column;
      }
  };
  for (const std::string type : {"aux_loss", "seq_aux_loss", "global_aux_loss"}) {
    const Overrides balance = {"model.moe_router_load_balancing_type=" + type};
    train(type, 8, 4, balance), train(type + "_padded", 11, 4, balance);
    expect_equal(type + "_padded", type);
  }
  // Losses that no other token enters do not depend on the microbatches.
  train("whole", 8, 8, {"model.moe_router_load_balancing_type=seq_aux_loss"});
  expect_equal("whole", "seq_aux_loss");
  train("limited", 8, 4, {"model.moe_expert_capacity_factor=0.9"});
  train("limited_padded", 11, 4, {"model.moe_expert_capacity_factor=0.9"});
  expect_equal("limited_padded", "limited");
}

TEST(InstructionTraining, NeedsAMask) {
  const TrainFolder folder;
  const Result result = folder.run("a", {"data.format=instruct"});
  EXPECT_EQ(result.code, 2);
  TE_EXPECT_CONTAINS(result.error, "train: has no loss mask");
}

}  // namespace
}  // namespace te
