// The GEMMs that te-bench gemm times, those of the linear layers of three models, and its options.
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
  bool autotune_given = false;  ///< on the command line
};

/// The linear layers of a model; of all models if `model` is empty. UserError for an unknown model.
std::vector<Linear> linears_of(const std::string& model);

GemmAutotune mode_of(const std::string& autotune);

/// The three GEMMs of a linear layer as the trainer launches them. The output of fprop and dgrad is BF16; wgrad
/// accumulates in FP32 (the first one of a step overwrites). In FP8, activations and weights are E4M3 and gradients
/// E5M2; dgrad and wgrad read transposed copies.
enum class GemmKind { fprop, dgrad, wgrad };
constexpr const char* kKindNames[] = {"fprop", "dgrad", "wgrad"};

/// The GEMM's description, without memory. `scales`: none for BF16; for FP8 `tensor`, or `vectors` for the recipe
/// blockwise (whose weights get `blocks`).
kernels::Gemm problem(const Linear& linear, int64_t tokens, GemmKind kind, kernels::ScaleLayout scales);

}  // namespace te::bench
