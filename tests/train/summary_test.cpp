// Lines of the start screen.
#include "train/summary.h"

#include <gtest/gtest.h>

namespace te::train {
namespace {

using kernels::GemmKernels;

TEST(Summary, NamesGemmKernelsByPrecisionAndPass) {
  EXPECT_EQ(gemm_summary({{"FP8", "fprop", GemmKernels::cublaslt, {"linear_qkv", "linear_fc2"}},
                          {"FP8", "fprop", GemmKernels::hopper, {"linear_fc1"}},
                          {"FP8", "dgrad", GemmKernels::cublaslt, {"linear_fc1"}},
                          {"FP8", "wgrad", GemmKernels::cublaslt, {"linear_fc1"}},
                          {"BF16", "fprop", GemmKernels::cublaslt, {"output_layer"}},
                          {"BF16", "wgrad", GemmKernels::cublaslt, {"output_layer"}}}),
            "gemm: FP8: fprop cuBLASLt (linear_qkv, linear_fc2), te-train's kernels for Hopper (linear_fc1); "
            "dgrad cuBLASLt; wgrad cuBLASLt\n"
            "  BF16: cuBLASLt\n");
}

TEST(Summary, WarnsOfSlowGemms) {
  const std::string unaligned =
      gemm_summary({{"BF16", "fprop", GemmKernels::cublaslt, {"linear_fc1"}},
                    {"BF16", "fprop", GemmKernels::cublaslt_unaligned, {"output_layer"}},
                    {"BF16", "dgrad", GemmKernels::cublaslt_unaligned, {"output_layer"}}});
  EXPECT_NE(unaligned.find("\n  note: slow GEMMs: fprop of output_layer, dgrad of output_layer: rows of the "
                           "matrices are not multiples of 16 bytes"),
            std::string::npos)
      << unaligned;
  const std::string fp32 = gemm_summary({{"FP32", "fprop", GemmKernels::cublaslt_fp32, {"linear_fc1"}}});
  EXPECT_NE(fp32.find("  note: slow GEMMs: fprop of linear_fc1: FP32 does not run on tensor cores"),
            std::string::npos)
      << fp32;
  const std::string fast = gemm_summary({{"FP8", "fprop", GemmKernels::hopper, {"linear_fc1"}}});
  EXPECT_EQ(fast.find("note"), std::string::npos) << fast;
}

TEST(Summary, NotesSlowExpertsAndForcedBalance) {
  config::ModelConfig model;
  EXPECT_EQ(experts_note(model, caps_of(80)), "");
  model.num_moe_experts = 8;
  DeviceCaps ampere = caps_of(80), hopper = caps_of(90);
  ampere.gpu = "NVIDIA A100-SXM4-80GB, sm_80", hopper.hopper_kernels = true;
  EXPECT_EQ(experts_note(model, ampere),
            "  note: GEMMs of experts run on FP32 units, many times slower than tensor cores: NVIDIA "
            "A100-SXM4-80GB, sm_80 "
            "has no kernels for them\n");
  EXPECT_EQ(experts_note(model, hopper), "");
  model.moe_router_force_load_balancing = true;
  EXPECT_EQ(experts_note(model, hopper),
            "  note: model.moe_router_force_load_balancing is for benchmarks: tokens select experts in turn, "
            "so the model is of no use\n");
  model.moe_router_force_load_balancing = false;
  EXPECT_EQ(experts_note(model, DeviceCaps{}), "");  // the CPU
}

TEST(Summary, SaysWhichRecipesAreEmulated) {
  const auto text_of = [](const char* overrides, bool native) {
    config::Config config;
    config.model.num_layers = 2;
    config.precision.fp8 = config::Fp8Mode::e4m3;
    config.precision.fp8_recipe = config::Fp8Recipe::mxfp8;
    config.precision.overrides = overrides;
    config.precision.mx_gemms = native;
    return precision_summary(config, Context::cpu());
  };
  const std::string note =
      ": emulated (GEMMs multiply the rounded values in bf16), so speed and memory are "
      "not those of the recipe\n";
  EXPECT_NE(text_of("", false).find("  mxfp8" + note), std::string::npos) << text_of("", false);
  EXPECT_NE(text_of("linear_fc2: nvfp4", false).find("  mxfp8, nvfp4" + note), std::string::npos);
  EXPECT_EQ(text_of("linear_fc2: nvfp4", true).find("emulated"), std::string::npos);
}

// Documents and windows together have tensor-core kernels for some heads only.
TEST(Summary, WarnsOfSlowAttention) {
  const auto text_of = [](int64_t head, std::vector<std::string> settings) {
    settings.push_back(fmt::format("model.kv_channels={}", head));
    settings.emplace_back("model.sliding_window=16");
    config::Config config = config::parse_config(
        "model: {family: llama, num_layers: 2, hidden_size: 64, ffn_hidden_size: 96, num_attention_heads: "
        "4,\n"
        "        vocab_size: 300, seq_length: 32}\n"
        "training: {micro_batch_size: 2, global_batch_size: 2, train_steps: 1}\n"
        "data: {synthetic: true}\n",
        "small", settings);
    config.data.document_mask = true;
    DeviceCaps hopper = caps_of(90);
    hopper.hopper_kernels = true;  // also in a build without them
    EXPECT_EQ(attention_summary(config, kernels::AttentionKernels::cpu, hopper), "");
    EXPECT_EQ(attention_summary(config, kernels::AttentionKernels::flash, hopper),
              "attention: te-train's kernels for Hopper\n");
    for (const int sm : {80, 89, 100, 103, 120}) {
      const std::string other_gpu = attention_summary(config, kernels::AttentionKernels::tiled, caps_of(sm));
      EXPECT_EQ(other_gpu.find("te-train has"), std::string::npos) << other_gpu;
      const bool remedy =
          other_gpu.find("; with training.deterministic: false, cuDNN may have\n") != std::string::npos;
      EXPECT_EQ(remedy, sm == 100 || sm == 103) << other_gpu;
    }
    return attention_summary(config, kernels::AttentionKernels::tiled, hopper);
  };
  const std::string why = "neither te-train nor cuDNN has a kernel for all of bf16, heads of ",
                    masks = "a sliding window, documents, training.deterministic",
                    head = "; with heads of 64 or 128 (model.kv_channels), te-train has";
  const std::string wide = text_of(96, {});
  EXPECT_NE(wide.find(why + "96, " + masks + head + "\n"), std::string::npos) << wide;
  const std::string dropout = text_of(96, {"model.attention_dropout=0.1"});
  EXPECT_NE(dropout.find(why + "96, attention dropout, " + masks + "\n"), std::string::npos) << dropout;
  EXPECT_EQ(text_of(64, {"model.attention_dropout=0.1"}).find(head), std::string::npos);
}

}  // namespace
}  // namespace te::train
