// Every layout gives the results of one rank: one rank runs the model alone, then all ranks run it as a layout, and
// each compares what it holds, element by element, with the full parameters.
//
// Bounds, all relative (gradients and FP32 master weights: per parameter, |x - x'| / |x'| in the Euclidean norm).
//
// FP32. Layouts differ only in the summation order. Reordering a sum of n numbers changes it by about sqrt(n) * 2^-24
// of
//   their norm; n <= 128 tokens * 4 microbatches, so 1.4e-6, less in GEMMs that sum in blocks; the largest change
//   measured in any gradient of step 1 was 8e-7. Later gradients are taken at weights that differ (2e-6), and Adam
//   divides by the gradient's size, which amplifies the difference of small ones (7e-6 in a bias). The bounds leave a
//   factor of 5 or more for the GEMMs of other machines. Anything that is summed twice, not at all, or in the wrong
//   place is off by 0.1 or more.
// Pipelines alone, without clipping and tied embeddings, sum in the same order as one rank: bitwise equal.
// BF16, FP16 and FP8. A value that differs in its last FP32 or BF16 bit sometimes falls on the other side of a rounding
//   boundary, which changes it by a whole step (2^-3 of it in E4M3, 2^-2 in E5M2). The next layer's operands of that
//   token then change by about a hundredth, and a tenth of them cross a boundary: after a few layers the token has
//   independent rounding errors. So two layouts differ like two samples of the rounding error, by sqrt(2) times the
//   rounding error itself. A run on one rank with higher precision measures that error (FP8 versus none, BF16 and FP16
//   versus FP32). The bound is kRoundings times that, per parameter. Before the first value has crossed a boundary, at
//   step 1 of layouts whose ranks have full microbatches and all columns (a GEMM with other rows may sum in a different
//   order), the FP32 bounds hold, and scales and amax histories are bitwise equal.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <optional>

#include <fmt/format.h>

#include "layout_references.h"
#include "layout_run.h"
#include "layout_table.h"
#include "parallel/groups.h"
#include "testing/mpi.h"
#include "train/execution.h"

namespace te::testing {
namespace {

using parallel::Axis;
using parallel::Groups;
using parallel::ProcessGrid;

// Sanitizers make a step about ten times slower. Every case still runs.
#ifdef __SANITIZE_ADDRESS__
constexpr int kSteps = 3;
#else
constexpr int kSteps = 10;  // more than the amax history has
#endif
constexpr int kLaterStep = 3;

struct Bounds {
  double first = 0;  ///< gradients of step 1
  double later = 0;  ///< gradients of step kLaterStep
  double mains = 0;  ///< after the last step
  double loss = 0;   ///< of every step, and on validation data
  double norm = 0;   ///< of all gradients, at every step
};
constexpr Bounds kFp32Bounds{.first = 5e-6, .later = 2e-5, .mains = 5e-5, .loss = 2e-6, .norm = 5e-6};
// A token with nearly equal scores of two experts may select the other one after an update that differs by rounding. It
// depends on the compiler and BLAS in which case that happens. The gradients of step 1 are not affected. A router's
// bias then moves in the other direction, and is not compared.
constexpr Bounds kNearTieBounds{.first = 5e-6, .later = 0.6, .mains = 0.2, .loss = 2e-2, .norm = 0.1};
constexpr double kRoundings = 7.0;  // 6.1 was measured with rounded sums of tensor- and expert-parallel ranks
/// Relative change of a loss due to BF16 alone: half a unit in the last place, as if no two roundings cancelled. The
/// measured rounding error is one number per step, sometimes near zero by chance.
constexpr double kBf16Loss = 0x1p-9;
/// Relative change of the gradient norm due to FP8 alone, for the same reasons: half a unit in the last place of E4M3.
constexpr double kFp8Norm = 0x1p-4;
/// An amax is a single value, with the rounding error of one.
constexpr double kAmaxBound = 0.25;

/// The same run on one rank. Cases that differ only in the layout share it, and those that differ in recompute, which
/// changes no bit on one rank (recompute_test.cpp).
config::Config on_one_rank(const Case& layout) {
  Case c = layout;
  c.recompute = config::Recompute::none;
  config::Config config = make_config(c);
  config.parallel = {};
  config::validate(config);
  return config;
}

/// The same case with higher precision.
Case more_precise(Case c) {
  if (c.fp8()) {
    c.precision = c.fp32() ? Precision::fp32_wide : Precision::bf16_wide;
  } else {
    c.precision = Precision::fp32;
    c.bf16_grads = false;
  }
  return c;
}

using Whole = std::map<std::string, std::vector<float>>;

Whole full_parameters(const Parts& parts) {
  Whole whole;
  for (const Part& part : parts) {
    std::vector<float>& values = whole[part.name];
    values.resize(static_cast<size_t>(part.numel));
    for (size_t i = 0; i < part.index.size(); ++i) values[static_cast<size_t>(part.index[i])] = part.value[i];
  }
  return whole;
}

// --- over all ranks ------------------------------------------------------------------------------------------

/// The elementwise sum over all ranks, in rank order.
template <class T>
std::vector<T> sum_over_ranks(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  std::vector<T> sum(values.size(), T{});
  for (const std::string& rank : world().gather_strings(bytes)) {
    TE_CHECK(rank.size() == bytes.size(), "ranks sum {} and {} bytes", rank.size(), bytes.size());
    for (size_t i = 0; i < sum.size(); ++i) {
      T value;
      std::memcpy(&value, rank.data() + i * sizeof(T), sizeof(T));
      sum[i] = static_cast<T>(sum[i] + value);
    }
  }
  return sum;
}

/// Relative error of every parameter, over all ranks' parts.
using Errors = std::map<std::string, double>;
Errors compare(const Parts& actual, const Whole& expected) {
  std::vector<double> sums;  // per parameter: squared differences, squared reference
  std::map<std::string, size_t> place;
  for (const auto& [name, values] : expected) {
    place[name] = sums.size();
    sums.resize(sums.size() + 2);
  }
  for (const Part& part : actual) {
    const auto found = expected.find(part.name);
    if (found == expected.end()) {
      ADD_FAILURE() << "one rank has no parameter " << part.name;
      continue;
    }
    double* sum = &sums[place[part.name]];
    for (size_t i = 0; i < part.index.size(); ++i) {
      const double whole = found->second.at(static_cast<size_t>(part.index[i]));
      sum[0] += (part.value[i] - whole) * (part.value[i] - whole);
      sum[1] += whole * whole;
    }
  }
  sums = sum_over_ranks(sums);
  Errors errors;
  for (const auto& [name, at] : place) {
    // B is zero in the first step, so A has no gradient, nor does a router's bias.
    const bool is_zero = sums[at] == 0 && sums[at + 1] == 0;
    if (is_zero && (name.ends_with(".lora_a") || name.ends_with("router.bias"))) {
      errors[name] = 0;
      continue;
    }
    // Steps of a bias have one size and can cancel; a near tie changes single ones.
    if (sums[at + 1] == 0 && name.ends_with("router.bias")) {
      errors[name] = 1;
      continue;
    }
    EXPECT_GT(sums[at + 1], 0) << name << ": nothing to compare with";
    errors[name] = std::sqrt(sums[at] / sums[at + 1]);
  }
  return errors;
}

/// Number of ranks that hold each element of a parameter, from its name.
int holders_of(const std::string& name, const config::Config& config) {
  const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  const bool projection =
      config.model.qk_norm == config::QkNorm::projection && (has("q_layernorm") || has("k_layernorm"));
  // All ranks have A of a column-parallel layer and B of a row-parallel one.
  const bool columns = has("linear_qkv.") || has("linear_fc1.");
  if (has(".lora_") && !has("experts."))
    return columns == has(".lora_b") ? 1 : static_cast<int>(config.parallel.tensor);
  const bool sharded = projection || has("linear_qkv.") || has("linear_fc1.") || has("linear_proj.weight") ||
                       has("linear_fc2.weight") || has("word_embeddings") || has("output_layer") ||
                       has("router") || has("experts.");
  const bool tied =
      has("word_embeddings") && config.model.tie_word_embeddings && config.parallel.pipeline > 1;
  return (sharded ? 1 : static_cast<int>(config.parallel.tensor)) * (tied ? 2 : 1);
}

/// Checks that together the ranks hold every element of every parameter, as often as they should.
void expect_cover(const Parts& parts, const Whole& expected, const config::Config& config) {
  std::vector<uint8_t> holders;
  std::map<std::string, size_t> place;
  for (const auto& [name, values] : expected) {
    place[name] = holders.size();
    holders.resize(holders.size() + values.size());
  }
  for (const Part& part : parts) {
    ASSERT_TRUE(place.contains(part.name)) << part.name;
    for (const int64_t index : part.index) holders.at(place[part.name] + static_cast<size_t>(index)) += 1;
  }
  holders = sum_over_ranks(holders);
  for (const auto& [name, values] : expected) {
    const uint8_t* first = &holders[place[name]];
    const auto wrong =
        static_cast<int64_t>(values.size()) -
        std::count(first, first + values.size(), static_cast<uint8_t>(holders_of(name, config)));
    EXPECT_EQ(wrong, 0) << name << ": elements that are not held by " << holders_of(name, config) << " ranks";
  }
}

// --- differences of two runs ----------------------------------------------------------------------------------

double largest_difference(const std::vector<double>& actual, const std::vector<double>& expected) {
  double largest = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double difference = std::abs(actual[i] / expected[i] - 1);
    if (!(difference <= largest)) largest = difference;
  }
  return largest;
}

struct Difference {
  double loss, norm, valid;
  Errors first, later, mains;
};

Difference difference(const Trace& actual, const Trace& expected) {
  return {largest_difference(actual.loss, expected.loss),
          largest_difference(actual.grad_norm, expected.grad_norm),
          largest_difference({actual.valid_loss}, {expected.valid_loss}),
          compare(actual.grads.at(1), full_parameters(expected.grads.at(1))),
          compare(actual.grads.at(kLaterStep), full_parameters(expected.grads.at(kLaterStep))),
          compare(actual.mains, full_parameters(expected.mains))};
}

/// `floor`, or the rounding error if that is larger.
double allowed(double floor, const double* rounding) {
  return rounding == nullptr ? floor : std::max(floor, kRoundings * *rounding);
}

/// Prints the worst parameter for the table in docs/explanation/determinism.md.
std::string expect_within(const char* what, const Errors& actual, double floor, const Errors* rounding) {
  std::string worst;
  double largest = -1;
  for (const auto& [name, error] : actual) {
    EXPECT_LE(error, allowed(floor, rounding == nullptr ? nullptr : &rounding->at(name)))
        << what << " of " << name;
    if (!(error <= largest)) largest = error, worst = name;
  }
  const std::string cost = rounding == nullptr ? "" : fmt::format(" of {:.1e}", rounding->at(worst));
  return fmt::format("{} {:.1e}{}", what, largest, cost);
}

class Layout : public ::testing::TestWithParam<Case> {
 protected:
  /// Checks that the FP8 state is bitwise equal on all these ranks.
  static void expect_same_fp8(const Trace& trace, const std::vector<int>& ranks, bool of_experts = true) {
    for (const auto& [step, operands] : trace.fp8) {
      std::string bytes;
      for (const auto& [name, values] : operands)
        if (of_experts || name.find(".experts.") == std::string::npos)
          bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
      for (const std::string& other : world().gather_strings(bytes, ranks))
        EXPECT_TRUE(other == bytes) << "FP8 state after step " << step << " differs within " << ranks.size()
                                    << " ranks";
    }
  }
  /// The largest relative difference of the FP8 state after step 1; one rank has all operands.
  static double fp8_difference(const Trace& actual, const Trace& expected) {
    double largest = 0;
    for (const auto& [name, values] : actual.fp8.at(1)) {
      const std::vector<float>& whole = expected.fp8.at(1).at(name);
      EXPECT_EQ(values.size(), whole.size()) << name;
      for (size_t i = 0; i < values.size(); ++i) {
        if (values[i] == whole[i]) continue;  // includes zeros: unused rows of the history
        const double difference = std::abs(values[i] / whole[i] - 1);
        if (!(difference <= largest)) largest = difference;
      }
    }
    return world().max_f64(largest);
  }
};

TEST_P(Layout, EqualsOneRank) {
  const Case& c = GetParam();
  static const RunOptions options{.steps = kSteps, .grads_at = {1, kLaterStep}};
  static LayoutReferences references(options);
  const config::Config config = make_config(c);
  config::validate(config);
  const ProcessGrid grid = ProcessGrid::of(world().size(), c.tensor, c.context, c.pipeline, c.expert);
  const bool stages_alone = c.tensor == 1 && c.context == 1 && grid[Axis::data] == 1;
  const bool exact = stages_alone && !c.tied() && config.optimizer.clip_grad == 0;
  const bool rounded =
      !exact && (c.fp8() || c.precision == Precision::bf16 || c.precision == Precision::fp16 || c.bf16_grads);
  std::vector<config::Config> alone{on_one_rank(c)};
  if (rounded) alone.push_back(on_one_rank(more_precise(c)));
  const std::vector<const Trace*> by_itself = references.of(alone);
  const Trace& one = *by_itself[0];
  const Groups groups = Groups::connect(world(), Context::cpu(), grid, train::connect_options(config));
  const Trace ranks = train_small(
      config, groups,
      {.steps = options.steps, .grads_at = options.grads_at, .data_parallel = data_parallel_of(c)});
  EXPECT_TRUE(grid[Axis::data] == 1 || ranks.buckets > 1) << "one bucket does not test the order of buckets";

  // 1. Every rank holds what it should, and nothing is missing.
  expect_cover(ranks.grads.at(1), full_parameters(one.grads.at(1)), config);
  expect_cover(ranks.mains, full_parameters(one.mains), config);
  // 2. The bounds.
  Difference actual = difference(ranks, one);
  // Each round of a dispatch has its own current scales, also in the calibration of delayed ones.
  const bool other_scales = c.dispatch_factor < 1 && c.fp8();
  // In a single round each rank rounds the sums of its experts' results.
  const bool rounds_results = c.expert > 1 && c.dispatch_factor >= 1;
  const bool rounded_at_once =
      rounded && (c.tensor > 1 || c.context > 1 || c.bf16_grads || other_scales || rounds_results);
  const bool near_tie =
      !exact && !rounded && config.model.num_moe_experts > 0 && actual.loss > kFp32Bounds.loss;
  const Bounds& inexact = near_tie ? kNearTieBounds : kFp32Bounds;
  const Bounds floor = exact ? Bounds{} : inexact;
  std::optional<Difference> rounding;
  if (rounded) rounding = difference(*by_itself[1], one);
  std::string measured =
      fmt::format("loss {:.1e} norm {:.1e} valid {:.1e}", actual.loss, actual.norm, actual.valid);
  measured +=
      " " + expect_within("grads1", actual.first, floor.first, rounded_at_once ? &rounding->first : nullptr);
  measured += " " + expect_within("grads3", actual.later, floor.later, rounded ? &rounding->later : nullptr);
  // The bias moves by the sign of an expert's load, which one token that is routed differently can change.
  if (near_tie || rounded)
    std::erase_if(actual.mains, [](const auto& one) { return one.first.ends_with("router.bias"); });
  measured += " " + expect_within("mains", actual.mains, floor.mains, rounded ? &rounding->mains : nullptr);
  const double loss_floor = rounded && !c.fp32() ? kBf16Loss : floor.loss;
  // Validation follows the last update, where two runs have drifted apart most: its rounding error counts, too, as the
  // few steps of a sanitizer's run underestimate it.
  const double loss_cost = rounded ? std::max(rounding->loss, rounding->valid) : 0.0;
  EXPECT_LE(actual.loss, allowed(loss_floor, rounded ? &loss_cost : nullptr));
  EXPECT_LE(actual.valid, allowed(loss_floor, rounded ? &loss_cost : nullptr));
  // z-loss is the square of a logarithm: twice its relative difference, which is below that of the loss.
  EXPECT_EQ(ranks.z_loss.size(), c.z_loss > 0 ? one.loss.size() : 0);
  EXPECT_LE(largest_difference(ranks.z_loss, one.z_loss),
            2 * allowed(loss_floor, rounded ? &loss_cost : nullptr));
  // With norms on every output, rounding of the weights changes the gradient norm more.
  const double norm_floor = rounded && c.fp8() ? kFp8Norm : (c.norms_on_outputs() ? 4 : 1) * inexact.norm;
  EXPECT_LE(actual.norm, allowed(norm_floor, rounded ? &rounding->norm : nullptr));
  // 3. The FP8 state.
  if (c.fp8()) {
    // A current scale of an expert is that of the rows on its rank.
    const bool scales_of_experts =
        c.delayed() || config.model.num_moe_experts == 0 || groups.microbatch().size() == 1;
    expect_same_fp8(ranks, c.delayed() ? groups.stage().world_ranks() : groups.microbatch().world_ranks(),
                    c.expert == 1 && scales_of_experts);
    if (c.delayed()) expect_same_fp8(ranks, groups.of(parallel::Group::expert_data).world_ranks());
    if (c.delayed() || (grid[Axis::data] == 1 && scales_of_experts)) {
      const double scales = fp8_difference(ranks, one);
      // A power-of-two scale halves as soon as the amax passes a power of two.
      const double bound = c.recipe() == Fp8Recipe::tensorwise ? 1.0 : kAmaxBound;
      EXPECT_LE(scales, c.tensor == 1 && c.context == 1 && !other_scales && !rounds_results ? 0.0 : bound);
      measured += fmt::format(" fp8 state {:.1e}", scales);
    }
  }
  if (world().leader()) {
    std::printf("MEASURED %-42s %s %s, loss %.3f -> %.3f\n", c.name.c_str(), grid.str().c_str(),
                measured.c_str(), one.loss.front(), one.loss.back());
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, Layout, ::testing::ValuesIn(with_copies(cases_of(world().size()))),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace te::testing
