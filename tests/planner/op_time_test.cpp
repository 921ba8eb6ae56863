// Predicted times of single operations and collectives, compared with values computed by hand.
#include "planner/op_time.h"

#include <gtest/gtest.h>

#include "kernels/attention/attention.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_activation.h"
#include "kernels/moe/grouped_gemm.h"
#include "kernels/quantize/quantize.h"
#include "testing/files.h"

namespace te::planner {
namespace {

/// Only the shape is read.
Tensor tensor(DType dtype, Shape shape) {
  static char somewhere;
  return {&somewhere, dtype, shape};
}

double gemm_tflops(const Gpu& gpu, DType dtype, int64_t m, int64_t n, int64_t k) {
  const Tensor a = tensor(dtype, {m, k}), b = tensor(dtype, {n, k});
  const kernels::Gemm gemm =
      dtype == DType::bf16
          ? kernels::Gemm{.a = a, .b = b, .out = tensor(DType::bf16, {m, n}), .trans_b = true}
          : kernels::Gemm{.a = {a, tensor(DType::f32, {1}), kernels::ScaleLayout::tensor},
                          .b = {b, tensor(DType::f32, {1}), kernels::ScaleLayout::tensor},
                          .out = tensor(DType::bf16, {m, n}),
                          .trans_b = true};
  const double seconds =
      op_seconds({.name = "gemm", .label = "", .cost = {}, .args = gemm}, gpu) - gpu.launch;
  return 2.0 * static_cast<double>(m * n * k) / seconds / 1e12;
}

TEST(OpTime, LargeGemmsApproachTheirRates) {
  const Gpu& gpu = gpu_named("h200");
  EXPECT_NEAR(gemm_tflops(gpu, DType::bf16, 65536, 65536, 65536), gpu.bf16 / 1e12, 0.005 * gpu.bf16 / 1e12);
  EXPECT_NEAR(gemm_tflops(gpu, DType::e4m3, 65536, 65536, 65536), gpu.fp8 / 1e12, 0.005 * gpu.fp8 / 1e12);
}

// 64 x 16 tiles plus an overhead of 44: 1024 / 1068; for k, 4096 / 4156.
TEST(OpTime, GemmMatchesHandComputation) {
  const Gpu& gpu = gpu_named("h200");
  EXPECT_NEAR(gemm_tflops(gpu, DType::e4m3, 8192, 4096, 4096), 1385 * (1024 / 1068.0) * (4096 / 4156.0),
              0.01);
}

// Such a GEMM takes as long as its memory traffic.
TEST(OpTime, GemmWithFewColumnsIsMemoryBound) {
  const Gpu& gpu = gpu_named("h200");
  const double bytes = 2.0 * (65536.0 * 4096 + 16.0 * 4096 + 65536.0 * 16);
  EXPECT_NEAR(gemm_tflops(gpu, DType::bf16, 65536, 16, 4096),
              2.0 * 65536 * 16 * 4096 / (bytes / gpu.copy) / 1e12, 0.01);
}

// A weight gradient has few tiles and a long sum, so split-K is used.
TEST(OpTime, LongSumsUseSplitK) {
  const Gpu& gpu = gpu_named("h200");
  EXPECT_GT(gemm_tflops(gpu, DType::bf16, 768, 768, 65536), 0.6 * gpu.bf16 / 1e12);
  EXPECT_LT(gemm_tflops(gpu, DType::bf16, 768, 768, 768), 0.4 * gpu.bf16 / 1e12);
}

// 64 experts of 2,048 x 2,048 and 131,072 rows. Half of the time of the gradient's sums is not hidden.
TEST(OpTime, GroupedGemmsHaveTheRateOfTheirPass) {
  const Gpu& gpu = gpu_named("h200");
  constexpr int64_t kRows = 131072, kExperts = 64, kSize = 2048;
  const Tensor scales = tensor(DType::f32, {kExperts}), offsets = tensor(DType::i32, {kExperts + 1});
  const auto matrix = [&](DType dtype, Shape shape) {
    return kernels::Matrix(tensor(dtype, shape), scales, kernels::ScaleLayout::tensor);
  };
  const double flops = 2.0 * kRows * kSize * kSize, sums = 2.0 * 4 * kExperts * kSize * kSize;
  const auto seconds = [&](const char* name, const std::any& args) {
    return op_seconds({.name = name, .label = "", .cost = {}, .args = args}, gpu) - gpu.launch;
  };
  const kernels::GroupedGemm fprop{.a = matrix(DType::e4m3, {kRows, kSize}),
                                   .b = matrix(DType::e4m3, {kExperts * kSize, kSize}),
                                   .offsets = offsets,
                                   .out = tensor(DType::bf16, {kRows, kSize}),
                                   .trans_b = true};
  kernels::GroupedGemm dgrad = fprop;
  dgrad.b = matrix(DType::e4m3, {kSize, kExperts * kSize}), dgrad.trans_b = false;
  const kernels::GroupedWgrad wgrad{.a = matrix(DType::e5m2, {kSize, kRows}),
                                    .b = matrix(DType::e4m3, {kSize, kRows}),
                                    .offsets = offsets,
                                    .out = tensor(DType::f32, {kExperts * kSize, kSize}),
                                    .accumulate = true};
  EXPECT_NEAR(seconds("grouped_gemm", fprop), flops / 1330e12, 1e-9);
  EXPECT_NEAR(seconds("grouped_gemm", dgrad), flops / 1110e12, 1e-9);
  EXPECT_NEAR(seconds("grouped_wgrad", wgrad), flops / 1030e12 + 0.5 * sums / gpu.copy, 1e-9);
}

TEST(OpTime, AttentionOfLongSequencesIsFaster) {
  const Gpu& gpu = gpu_named("h200");
  const auto tflops = [&](int64_t seq) {
    const kernels::AttentionForward args{
        .shape = {.batch = 1, .seq = seq, .num_heads = 32, .num_query_groups = 32, .head_dim = 128},
        .qkv = tensor(DType::bf16, {seq, 3 * 4096}),
        .o = tensor(DType::bf16, {seq, 4096}),
        .lse = tensor(DType::f32, {1, 32, seq})};
    const double seconds =
        op_seconds({.name = "attention_forward", .label = "", .cost = {}, .args = args}, gpu) - gpu.launch;
    return 2.0 * 32 * 128 * static_cast<double>(seq) * static_cast<double>(seq) / seconds / 1e12;
  };
  // Measured in steps: 463 and 519 TFLOP/s.
  EXPECT_NEAR(tflops(2048), 463, 0.03 * 463);
  EXPECT_NEAR(tflops(4096), 519, 0.03 * 519);
}

// 8 groups of one sequence of 8,192: 512 tasks. With 32 groups there are 2,048. The ramp: 8192 / 8704.
TEST(OpTime, AttentionBackwardIsSlowerWithFewTasks) {
  const Gpu& gpu = gpu_named("h200");
  const auto tflops = [&](int64_t groups) {
    const int64_t seq = 8192, columns = (32 + 2 * groups) * 128;
    const kernels::AttentionBackward args{
        .shape = {.batch = 1, .seq = seq, .num_heads = 32, .num_query_groups = groups, .head_dim = 128},
        .qkv = tensor(DType::bf16, {seq, columns}),
        .o = tensor(DType::bf16, {seq, 4096}),
        .lse = tensor(DType::f32, {1, 32, seq}),
        .d_o = tensor(DType::bf16, {seq, 4096}),
        .dqkv = tensor(DType::bf16, {seq, columns})};
    const double seconds =
        op_seconds({.name = "attention_backward", .label = "", .cost = {}, .args = args}, gpu) - gpu.launch;
    return 5.0 * 32 * 128 * 8192 * 8192 / seconds / 1e12;
  };
  EXPECT_NEAR(tflops(8), 435 * (8192 / 8704.0) * (512 / 612.0), 0.1);
  EXPECT_NEAR(tflops(32), 435 * (8192 / 8704.0) * (2048 / 2148.0), 0.1);
}

TEST(OpTime, MemoryBoundOpsDependOnTheirBytes) {
  const Gpu& gpu = gpu_named("h100");
  const OpCall add{.name = "add", .label = "", .cost = {.bytes = 1e9}, .args = {}};
  EXPECT_DOUBLE_EQ(op_seconds(add, gpu), gpu.launch + 1e9 / (0.8 * 2.95e12));
  const kernels::Quantize quantized{.x = tensor(DType::bf16, {1024, 1024}),
                                    .out = {.rowwise = tensor(DType::e4m3, {1024, 1024})}};
  EXPECT_DOUBLE_EQ(op_seconds({.name = "quantize", .label = "", .cost = {}, .args = quantized}, gpu),
                   gpu.launch + 3.0 * 1024 * 1024 / (0.8 * 2.95e12));
}

TEST(OpTime, CollectivesWithinAHost) {
  const Gpu& gpu = gpu_named("h200");
  const GroupPlacement four{.ranks = 4, .per_host = 4};
  EXPECT_DOUBLE_EQ(communication_seconds("all_gather", 1e9, four, gpu), 12e-6 + 0.75e9 / 338e9);
  EXPECT_DOUBLE_EQ(communication_seconds("all_reduce", 1e9, four, gpu), 2 * (12e-6 + 0.75e9 / 338e9));
  EXPECT_DOUBLE_EQ(communication_seconds("send", 1e9, {2, 2}, gpu), 12e-6 + 1e9 / 338e9);
  EXPECT_EQ(communication_seconds("all_reduce", 1e9, {1, 1}, gpu), 0);
}

// Each rank of a host has an adapter.
TEST(OpTime, CollectivesBetweenHosts) {
  const Gpu& gpu = gpu_named("h200");
  EXPECT_DOUBLE_EQ(communication_seconds("all_gather", 8e9, {.ranks = 8, .per_host = 1}, gpu),
                   25e-6 + 7e9 / 42e9);
  EXPECT_DOUBLE_EQ(communication_seconds("all_gather", 8e9, {.ranks = 8, .per_host = 2}, gpu),
                   25e-6 + 7e9 / 84e9);
  EXPECT_DOUBLE_EQ(communication_seconds("all_gather", 16e9, {.ranks = 16, .per_host = 8}, gpu),
                   25e-6 + 15e9 / 336e9);
}

TEST(OpTime, PlacementOfGroups) {
  const Cluster cluster{.gpu = gpu_named("h200"), .gpus = 64, .per_host = 8};
  EXPECT_EQ(place_of(cluster, 4, 1).per_host, 4);  // tensor-parallel ranks are neighbors
  EXPECT_EQ(place_of(cluster, 16, 4).per_host,
            2);  // data-parallel ranks are four tensor-parallel ranks apart
  EXPECT_EQ(place_of(cluster, 8, 8).per_host, 1);
  EXPECT_EQ(place_of(cluster, 4, 16).per_host, 1);
  // Ranks 6 to 8 are on two hosts.
  const Cluster three{.gpu = gpu_named("h200"), .gpus = 24, .per_host = 8};
  EXPECT_EQ(place_of(three, 3, 1).per_host, 1);
  EXPECT_EQ(place_of(three, 3, 2).per_host, 1);
  EXPECT_EQ(place_of({.gpu = three.gpu, .gpus = 6, .per_host = 8}, 3, 1).per_host, 3);
}

TEST(Gpus, AreKnownByName) {
  EXPECT_EQ(gpu_named("h100").memory_bytes, int64_t{81559} << 20);
  TE_EXPECT_CONTAINS(testing::user_error_of([] { gpu_named("v100"); }), "h100, h200, a100");
}

}  // namespace
}  // namespace te::planner
