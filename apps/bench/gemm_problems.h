// What te-bench gemm measures: the GEMMs of the linears of known models, and its options.
#pragma once

#include <string>
#include <vector>

#include "bench/session.h"
#include "kernels/gemm/gemm.h"

namespace te::bench {

/// y [tokens, out] = x [tokens, in] W^T.
struct Linear {
  const char* model;
  const char* name;
  int64_t out, in;
};

struct GemmOptions {
  Options common;
  int64_t tokens = 8192;
  std::string model, autotune = "on", recipe = "tensorwise";
  std::vector<int> kernels;  ///< of a blockwise recipe (kernels/gemm/block_scaled.h), 0: cuBLASLt; empty: all
};

/// Those of a model, of all models if it is empty. UserError for a model that is not known.
std::vector<Linear> linears_of(const std::string& model);

GemmAutotune mode_of(const std::string& autotune);

/// The three GEMMs of a linear as the trainer launches them: fprop and dgrad give BF16, wgrad adds to
/// FP32 (a step's first one writes it). FP8 has E4M3 activations and weights and E5M2 gradients; its dgrad and wgrad
/// read transposed copies.
enum class GemmKind { fprop, dgrad, wgrad };
constexpr const char* kKindNames[] = {"fprop", "dgrad", "wgrad"};

/// The GEMM's description, without memory. `scales`: none for BF16; of FP8 tensor, or vectors, which are the recipe
/// blockwise, whose weights have blocks.
kernels::Gemm problem(const Linear& linear, int64_t tokens, GemmKind kind, kernels::ScaleLayout scales);

/// te-bench gemm --recipe blockwise.
void run_block_scaled(const GemmOptions& options);

}  // namespace te::bench
