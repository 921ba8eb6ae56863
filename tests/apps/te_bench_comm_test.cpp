// te-bench comm end to end on the CPU: the communication of layouts.
#include <algorithm>
#include <cmath>
#include <vector>

#include "te_bench_testing.h"

namespace te {
namespace {

class TeBenchComm : public testing::TeBench {};

/// A row of te-bench comm without the values that differ between runs.
struct Sent {
  std::string group, operation, dtype;
  int ranks;
  int64_t bytes;
  double bus;  ///< bytes that a rank sends per byte, to six digits
  bool operator==(const Sent&) const = default;
};

void PrintTo(const Sent& sent, std::ostream* out) {
  *out << sent.group << ' ' << sent.operation << ' ' << sent.dtype << ' ' << sent.ranks << " ranks "
       << sent.bytes << " bytes " << sent.bus;
}

/// The rows of the report; also checks their rates.
std::vector<Sent> sent_transfers(const nlohmann::json& report) {
  std::vector<Sent> transfers;
  for (const auto& row : report.at("communication")) {
    const double bytes = row.at("bytes").get<double>(), rate = row.at("bytes_per_s").get<double>();
    EXPECT_GT(row.at("ms").get<double>(), 0.0);
    EXPECT_NEAR(rate * row.at("ms").get<double>() * 1e-3 / bytes, 1.0, 1e-9);
    EXPECT_TRUE(row.at("share_of_peak").is_null());  // no GPUs, so no links
    transfers.push_back({row.at("group"), row.at("operation"), row.at("dtype"), row.at("ranks"),
                         row.at("bytes"),
                         std::round(row.at("bus_bytes_per_s").get<double>() / rate * 1e6) / 1e6});
  }
  return transfers;
}

// The residual stream of a microbatch has 2 x 32 tokens of 64 BF16 values, 8192 bytes. A layer has (3 * 64 + 64 + 3 *
// 96) * 64 weights and two gains of 64.
TEST_F(TeBenchComm, TimesTheCommunicationOfALayout) {
  const std::string start =
      "comm --repeats 3 --json " + path("report.json") + " --config " + path("tiny.yaml");
  const std::string tensor = start + " --set parallel.tensor=2";
  ASSERT_EQ(run(tensor, 2), 0) << text("err");
  EXPECT_EQ(sent_transfers(report()), (std::vector<Sent>{{"tensor", "all_reduce", "bf16", 2, 8192, 1.0}}));
  EXPECT_NE(text("out").find("all_reduce: residual stream"), std::string::npos) << text("out");
  ASSERT_EQ(run(tensor + " --set parallel.sequence=true --set parallel.tensor_overlap=2", 2), 0)
      << text("err");
  EXPECT_EQ(sent_transfers(report()),
            (std::vector<Sent>{{"tensor", "all_gather", "fp8_e4m3", 2, 2048, 0.5},
                               {"tensor", "all_gather", "bf16", 2, 4096, 0.5},
                               {"tensor", "reduce_scatter", "bf16", 2, 4096, 0.5}}));
  // With scales per 128 values and 4 x 128 tokens in two chunks, each rank has whole blocks, and both layouts are sent.
  const std::string blocks = tensor +
                             " --set parallel.sequence=true --set parallel.tensor_overlap=2 --set "
                             "precision.fp8_recipe=blockwise --set model.seq_length=256";
  ASSERT_EQ(run(blocks, 2), 0) << text("err");
  constexpr int64_t kValues = 2 * 256 * 64;
  EXPECT_EQ(sent_transfers(report()),
            (std::vector<Sent>{{"tensor", "all_gather", "fp8_e4m3", 2, kValues / 2, 0.5},
                               {"tensor", "all_gather", "fp32", 2, 2 * 256 * 4, 0.5},
                               {"tensor", "all_gather", "fp8_e4m3", 2, kValues, 0.5},
                               {"tensor", "all_gather", "fp32", 2, kValues / 128 * 4 / 2, 0.5},
                               {"tensor", "all_gather", "bf16", 2, kValues, 0.5},
                               {"tensor", "reduce_scatter", "bf16", 2, kValues, 0.5}}));
  ASSERT_EQ(run(blocks + " --set parallel.tensor_overlap=4", 2), 0) << text("err");
  EXPECT_EQ(sent_transfers(report()),
            (std::vector<Sent>{{"tensor", "all_gather", "bf16", 2, kValues / 2, 0.5},
                               {"tensor", "reduce_scatter", "bf16", 2, kValues / 2, 0.5}}));
  ASSERT_EQ(run(start + " --set parallel.pipeline=2", 2), 0) << text("err");
  EXPECT_EQ(sent_transfers(report()),
            (std::vector<Sent>{{"pipeline", "send, receive", "bf16", 2, 8192, 1.0}}));
  // Buckets of a layer, whose weights are gathered in FP8, and the smaller BF16 buckets of the embedding, and of the
  // output layer with the final norm. Each rank has at least one granule of 128.
  ASSERT_EQ(run(start + " --set parallel.bucket_size=1", 2), 0) << text("err");
  constexpr int64_t kLayer = ((3 * 64 + 64 + 3 * 96) * 64 + 2 * 64 + 255) / 256 * 256,
                    kHead = (128 * 64 + 64 + 255) / 256 * 256;
  const std::vector<Sent> of_data = {{"data", "reduce_scatter", "fp32", 2, 4 * kLayer, 0.5},
                                     {"data", "all_gather", "bf16", 2, 2 * kHead, 0.5},
                                     {"data", "all_gather", "fp8_e4m3", 2, kLayer, 0.5}};
  EXPECT_EQ(sent_transfers(report()), of_data);
  ASSERT_EQ(run(start + " --set parallel.bucket_size=1 --set logging.fp8_statistics_every=1000", 2), 0)
      << text("err");
  EXPECT_EQ(sent_transfers(report()),
            (std::vector<Sent>{of_data[0], {"data", "all_gather", "bf16", 2, 2 * kLayer, 0.5}}));
  // Context-parallel ranks: 32 tokens each, with queries, keys and values of 64 columns; also gradients and weights.
  ASSERT_EQ(run(start + " --set parallel.context=2 --set parallel.bucket_size=1", 2), 0) << text("err");
  EXPECT_EQ(sent_transfers(report()),
            (std::vector<Sent>{{"context", "all_to_all", "bf16", 2, 32 * 3 * 64 * 2, 0.5},
                               {"context", "all_to_all", "bf16", 2, 32 * 64 * 2, 0.5},
                               of_data[0],
                               of_data[1],
                               of_data[2]}));
  // One query group cannot be divided between two ranks: keys and values of 16 columns each, of all 64 tokens.
  ASSERT_EQ(run(start + " --set parallel.context=2 --set model.num_query_groups=1", 2), 0) << text("err");
  const std::vector<Sent> keys = sent_transfers(report());
  ASSERT_EQ(keys.size(), 5u);
  EXPECT_EQ(keys[0], (Sent{"context", "all_gather", "bf16", 2, 64 * 32 * 2, 0.5}));
  EXPECT_EQ(keys[1], (Sent{"context", "reduce_scatter", "bf16", 2, 64 * 32 * 2, 0.5}));
}

// Four experts of 3 x 32 x 64 weights, of which a rank has two, and a router with a row for each. Each of 64 tokens has
// two experts, which are on the other rank in one of six cases.
TEST_F(TeBenchComm, TimesTheCommunicationOfExperts) {
  const std::string start = "comm --repeats 3 --json " + path("report.json") + " --config " +
                            path("tiny.yaml") +
                            " --set model.num_moe_experts=4 --set model.moe_ffn_hidden_size=32 --set "
                            "parallel.bucket_size=1 --set logging.fp8_statistics_every=1000";
  const auto full = [](int64_t count, int64_t ranks) {
    return (count + 128 * ranks - 1) / (128 * ranks) * 128 * ranks;
  };
  constexpr int64_t kAttention = (3 * 64 + 64) * 64 + 2 * 64, kRouter = 4 * 64, kExpert = 3 * 32 * 64;
  ASSERT_EQ(run(start + " --set parallel.expert=2 --set training.global_batch_size=8", 4), 0) << text("err");
  const int64_t dense = full(kAttention + kRouter, 4), experts = full(2 * kExpert, 2);
  EXPECT_EQ(sent_transfers(report()),
            (std::vector<Sent>{{"expert", "all_to_all", "fp8_e4m3", 2, 64 * 2 * 64, 0.5},
                               {"expert", "all_to_all", "bf16", 2, 53 * 2 * 64 * 2, 0.5},
                               {"data", "reduce_scatter", "fp32", 4, 4 * dense, 0.75},
                               {"data", "all_gather", "bf16", 4, 2 * dense, 0.75},
                               {"expert data", "reduce_scatter", "fp32", 2, 4 * experts, 0.5},
                               {"expert data", "all_gather", "bf16", 2, 2 * experts, 0.5}}));
  // Tensor-parallel ranks have all experts, in a group of the stage.
  ASSERT_EQ(run(start + " --set parallel.tensor=2 --set parallel.sequence=true", 2), 0) << text("err");
  const int64_t stage = full(kRouter + 4 * kExpert, 2);
  const std::vector<Sent> sent = sent_transfers(report());
  EXPECT_EQ(std::vector<Sent>(sent.end() - std::min<std::ptrdiff_t>(2, std::ssize(sent)), sent.end()),
            (std::vector<Sent>{{"stage", "reduce_scatter", "fp32", 2, 4 * stage, 0.5},
                               {"stage", "all_gather", "bf16", 2, 2 * stage, 0.5}}));
}

// Adapters of rank 8 of a layer: A of three blocks of linear_qkv, one of linear_proj, two of linear_fc1 and one of
// linear_fc2, and their B. The base has no gradients and is gathered only if weights are sharded.
TEST_F(TeBenchComm, TimesTheCommunicationOfAdapters) {
  const std::string start = "comm --repeats 3 --json " + path("report.json") + " --config " +
                            path("tiny.yaml") +
                            " --set parallel.bucket_size=1 --set checkpoint.init_from=base --set "
                            "adapter.type=lora --set adapter.rank=8";
  constexpr int64_t kAdapters = 8 * ((3 * 64 + 3 * 64) + (64 + 64) + (2 * 64 + 2 * 96) + (96 + 64));
  constexpr int64_t kLayer = ((3 * 64 + 64 + 3 * 96) * 64 + 2 * 64 + 255) / 256 * 256;
  static_assert(kAdapters % 256 == 0);
  const std::vector<Sent> of_adapters = {{"data", "reduce_scatter", "fp32", 2, 4 * kAdapters, 0.5},
                                         {"data", "all_gather", "bf16", 2, 2 * kAdapters, 0.5}};
  for (const std::string fp8 : {"off", "hybrid"}) {
    ASSERT_EQ(run(start + " --set precision.fp8=" + fp8, 2), 0) << text("err");
    EXPECT_EQ(sent_transfers(report()), of_adapters) << fp8;
  }
  ASSERT_EQ(run(start + " --set parallel.shard=parameters --set precision.fp8=off", 2), 0) << text("err");
  EXPECT_EQ(sent_transfers(report()),
            (std::vector<Sent>{of_adapters[0], {"data", "all_gather", "bf16", 2, 2 * kLayer, 0.5}}));
}

TEST_F(TeBenchComm, CommNeedsRanksThatFitTheLayout) {
  EXPECT_EQ(run("comm --config " + path("tiny.yaml")), 2);
  EXPECT_EQ(text("err").find("te-bench: error: te-bench comm needs at least two ranks; "), 0u) << text("err");
  EXPECT_EQ(run("comm --config " + path("tiny.yaml") + " --set parallel.tensor=2", 3), 2);
  const std::string lines = "\n" + text("err");  // mpirun may print other lines first
  EXPECT_NE(lines.find("\nte-bench: error: parallel: 3 ranks cannot be divided"), std::string::npos) << lines;
}

}  // namespace
}  // namespace te
