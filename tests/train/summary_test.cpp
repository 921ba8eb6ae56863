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

}  // namespace
}  // namespace te::train
