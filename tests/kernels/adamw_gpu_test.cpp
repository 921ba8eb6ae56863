// CUDA AdamW against the CPU reference, bitwise over several steps: with and without a BF16 copy, with Adam moments in
// all formats, for partial tails and unaligned shards. The skip flag leaves every bit unchanged.
#include "kernels/adamw/adamw.h"
#include "kernels/adamw/moment_rounding.h"
#include "kernels/param_split/param_split.h"
#include "testing/testing.h"

namespace te::kernels {
namespace {

using testing::TestTensor;
using Bits = std::vector<std::vector<uint8_t>>;

struct Shard {
  int64_t n;
  int64_t offset;  ///< elements by which every buffer is shifted, to break its alignment
  bool copy;       ///< with a bf16 copy
  int32_t skip;
  bool split = false;  ///< master weights as BF16 weights and remainders
  DType exp_avg = DType::f32, exp_avg_sq = DType::f32;
  int num_runs = 1;
  bool groups = false;  ///< two groups of settings
};

/// `count` runs of about equal, mostly odd lengths: alternately whole rows and parts of rows, with a gap before the
/// first.
std::vector<MomentRun> runs_of(int64_t n, int count) {
  std::vector<MomentRun> runs;
  for (int64_t k = 0; k < count; ++k) {
    const bool part = k % 2 == 1;
    runs.push_back({.begin = n * k / count + (k == 0 && n > 131 * count ? 130 : 0),
                    .stream = static_cast<uint64_t>(1000 * k),
                    .region = {.local_cols = part ? 4 + k % 5 : 12,
                               .first_local = k % 7,
                               .global_row = k,
                               .global_col = part ? 4 : 0,
                               .global_cols = part ? 64 + k % 3 : 12}});
  }
  return runs;
}

// Complete optimizer state after `steps` steps. The first `offset` elements are guards.
Bits run(const Context& context, const Shard& s, int steps) {
  const int64_t size = s.n + s.offset;
  TestTensor w(context, DType::f32, {size}), g(context, DType::f32, {size}), m(context, s.exp_avg, {size});
  TestTensor v(context, s.exp_avg_sq, {size}), p(context, DType::bf16, {size});
  const std::vector<MomentRun> runs = runs_of(s.n, s.num_runs);
  TestTensor table(context, DType::u8, {static_cast<int64_t>(runs.size() * sizeof(MomentRun))});
  table.fill_raw(runs.data());
  TestTensor decay(context, DType::u8, {(s.n + kAdamWGranule - 1) / kAdamWGranule});
  TestTensor multiplier(context, DType::f32, {1}), skip(context, DType::i32, {1});
  w.fill_normal(1);
  context.zero(m), context.zero(v);
  TestTensor m_exponents(context, DType::u8, {granules_of(s.n)}),
      v_exponents(context, DType::u8, {granules_of(s.n)});
  context.zero(m_exponents), context.zero(v_exponents);
  std::vector<uint8_t> flags(static_cast<size_t>(decay.get().numel()));
  for (size_t i = 0; i < flags.size(); ++i)
    flags[i] = static_cast<uint8_t>((i % 3 != 1 ? kGranuleDecays : 0) | i % 2 << kGranuleGroupShift);
  decay.fill_raw(flags.data());
  const AdamWGroup settings[] = {{1.0f, 0.1f}, {0.3f, 0.7f}};
  TestTensor groups(context, DType::u8, {sizeof(settings)});
  groups.fill_raw(settings);
  multiplier.fill({0.3f});
  skip.fill_ints({s.skip});
  const auto part = [&](const TestTensor& t) {
    const Tensor& whole = t.get();
    return whole.view({size, 1}).slice_rows(s.offset, s.n).view({s.n});
  };
  AdamW args{.main_param = part(w),
             .main_grad = part(g),
             .exp_avg = part(m),
             .exp_avg_sq = part(v),
             .exp_avg_exponents = m_exponents,
             .exp_avg_sq_exponents = v_exponents,
             .param = s.copy ? part(p) : Tensor{},
             .flags = decay,
             .groups = s.groups ? groups.get() : Tensor{},
             .runs = table,
             .seed = 77,
             .lr = 3e-3f,
             .weight_decay = 0.1f};
  TestTensor remainder(context, DType::u16, {size});
  if (s.split) {
    split_params(context, {args.main_param, part(p), part(remainder)});
    args.param = part(p);
    args.remainder = part(remainder);
    args.main_param = {};
  }
  args.grad_multiplier = multiplier.get().as<float>();
  args.skip = skip.get().as<int32_t>();
  for (int step = 1; step <= steps; ++step) {
    g.fill_normal(static_cast<uint64_t>(10 + step),
                  step == 2 ? 1e-22f : 0.1f);  // squares below the normal range
    args.step = step;
    adamw(context, args);
  }
  return {w.raw(),
          m.raw(),
          v.raw(),
          p.raw(),
          s.split ? remainder.raw() : std::vector<uint8_t>{},
          m_exponents.raw(),
          v_exponents.raw()};
}

TEST(AdamWGpu, MatchesReferenceBitwise) {
  TE_REQUIRE_GPU();
  const Context cpu = Context::cpu(), gpu = Context::cuda(0);
  for (int64_t n : {1, 3, 4, 128, 1000, 1024, 100'003})
    for (int64_t offset : {0, 1, 2})
      for (bool copy : {false, true}) {
        for (const Shard& setup : {Shard{n, offset, copy, 0}, Shard{n, offset, true, 0, true},
                                   Shard{.n = n, .offset = offset, .copy = copy, .skip = 0, .groups = true}})
          EXPECT_EQ(run(cpu, setup, 10), run(gpu, setup, 10))
              << n << " " << offset << " " << copy << setup.split;
      }
}

TEST(AdamWGpu, RoundsMomentsLikeTheReference) {
  TE_REQUIRE_GPU();
  const Context cpu = Context::cpu(), gpu = Context::cuda(0);
  for (const int64_t n : {1, 5, 128, 1000, 1024, 100'003})
    for (const int64_t offset : {0, 1})
      for (const int num_runs : {1, 2, 33, 1500})
        for (const bool split : {false, true})
          for (const auto& [m, v] :
               {std::pair{DType::bf16, DType::bf16}, {DType::bf16, DType::f32}, {DType::f32, DType::bf16}}) {
            if (num_runs > n) continue;
            const Shard setup{n, offset, true, 0, split, m, v, num_runs};
            EXPECT_EQ(run(cpu, setup, 4), run(gpu, setup, 4))
                << n << " " << offset << " " << num_runs << split << dtype_name(m) << dtype_name(v);
          }
}

TEST(AdamWGpu, Fp8MomentsMatchReferenceBitwise) {
  TE_REQUIRE_GPU();
  const Context cpu = Context::cpu(), gpu = Context::cuda(0);
  for (const int64_t n : {128, 1024, 1152, 128 * 1001})
    for (const int num_runs : {1, 5, 33})
      for (const bool split : {false, true})
        for (const auto& [m, v] : {std::pair{DType::e4m3, DType::u8},
                                   {DType::e4m3, DType::bf16},
                                   {DType::f32, DType::u8},
                                   {DType::e4m3, DType::f32}}) {
          const Shard setup{n, 0, true, 0, split, m, v, num_runs};
          EXPECT_EQ(run(cpu, setup, 6), run(gpu, setup, 6))
              << n << " " << num_runs << split << dtype_name(m) << dtype_name(v);
        }
  EXPECT_THROW(run(gpu, {1000, 0, true, 0, false, DType::e4m3, DType::u8}, 1), InternalError);
}

TEST(AdamWGpu, ModelWeightsMayBeFp32OrTheMasterWeights) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (int64_t n : {5, 300, 100'003}) {
    const auto once = [&](bool separate) {
      TestTensor w(gpu, DType::f32, {n}), g(gpu, DType::f32, {n}), m(gpu, DType::f32, {n});
      TestTensor v(gpu, DType::f32, {n}), copy(gpu, DType::f32, {n}), flags(gpu, DType::u8, {granules_of(n)});
      w.fill_normal(1), g.fill_normal(2), m.fill_value(0), v.fill_value(0);
      gpu.zero(flags);
      adamw(gpu, {.main_param = w,
                  .main_grad = g,
                  .exp_avg = m,
                  .exp_avg_sq = v,
                  .param = separate ? copy.get() : w.get(),
                  .flags = flags,
                  .lr = 1e-2f});
      if (separate) {
        EXPECT_EQ(copy.raw(), w.raw());
      }
      return w.raw();
    };
    EXPECT_EQ(once(true), once(false));
  }
}

TEST(AdamWGpu, NoMultiplierMeansOne) {
  TE_REQUIRE_GPU();
  const Context cpu = Context::cpu(), gpu = Context::cuda(0);
  const auto once = [](const Context& context) {
    TestTensor w(context, DType::f32, {256}), g(context, DType::f32, {256}), m(context, DType::f32, {256});
    TestTensor v(context, DType::f32, {256}), decay(context, DType::u8, {2});
    w.fill_normal(1), g.fill_normal(2), m.fill_value(0), v.fill_value(0);
    const uint8_t flags[] = {1, 0};
    decay.fill_raw(flags);
    adamw(context, {.main_param = w,
                    .main_grad = g,
                    .exp_avg = m,
                    .exp_avg_sq = v,
                    .flags = decay,
                    .lr = 1e-2f,
                    .weight_decay = 0.5f});
    return Bits{w.raw(), m.raw(), v.raw()};
  };
  EXPECT_EQ(once(gpu), once(cpu));
}

TEST(AdamWGpu, SkipKeepsAllBits) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (bool copy : {false, true}) {
    const Bits untouched = run(gpu, {1000, 0, copy, 0}, 0);
    EXPECT_EQ(run(gpu, {1000, 0, copy, 1}, 2), untouched);
    EXPECT_EQ(run(gpu, {1000, 0, copy, -5}, 2), untouched);
    EXPECT_NE(run(gpu, {1000, 0, copy, 0}, 2), untouched);
  }
}

}  // namespace
}  // namespace te::kernels
