// Attention on a GPU against the CPU reference with the same BF16 inputs; dropout by its statistics. On Hopper head_dim
// 64 and 128 without dropout run te-train's own kernels, all others cuDNN's.
#include <cmath>
#include <initializer_list>
#include <vector>

#include "core/device_caps.h"
#include "kernels/attention/attention.h"
#include "testing/testing.h"

namespace te::kernels {
namespace {

using te::testing::count_different;
using te::testing::relative_error;
using te::testing::TestTensor;

AttentionShape shape_of(int64_t batch, int64_t seq, int64_t heads, int64_t groups, int64_t dim,
                        float dropout = 0.0f) {
  return {batch, seq, heads, groups, dim, 1.0f / std::sqrt(static_cast<float>(dim)), dropout};
}

/// Tensors of one attention on one device.
struct Problem {
  Problem(const Context& context, const AttentionShape& shape, float spread = 1.5f)
      : context(context),
        shape(shape),
        rows(shape.batch * shape.seq),
        qkv(context, DType::bf16, {rows, (shape.num_heads + 2 * shape.num_query_groups) * shape.head_dim}),
        o(context, DType::bf16, {rows, shape.num_heads * shape.head_dim}),
        lse(context, DType::f32, {shape.batch, shape.num_heads, shape.seq}),
        d_o(context, DType::bf16, {rows, shape.num_heads * shape.head_dim}),
        dqkv(context, DType::bf16, qkv.get().shape),
        workspace(context, DType::u8, {attention_workspace_bytes(context, shape, DType::bf16)}) {
    qkv.fill_normal(1, spread);
    d_o.fill_normal(2);
  }
  void forward(uint64_t seed = 77) { attention_forward(context, {shape, qkv, o, lse, workspace, seed}); }
  void backward(uint64_t seed = 77) {
    attention_backward(context, {shape, qkv, o, lse, d_o, dqkv, workspace, seed});
  }

  const Context& context;
  AttentionShape shape;
  int64_t rows;
  TestTensor qkv, o, lse, d_o, dqkv, workspace;
};

/// Columns [begin, end) of every row.
std::vector<float> columns(const TestTensor& tensor, int64_t begin, int64_t end) {
  const std::vector<float> all = tensor.floats();
  std::vector<float> part;
  for (int64_t row = 0; row < tensor.get().rows(); ++row)
    for (int64_t col = begin; col < end; ++col)
      part.push_back(all[static_cast<size_t>(row * tensor.get().cols() + col)]);
  return part;
}

double length(const std::vector<float>& values) {
  double squares = 0.0;
  for (const float value : values) squares += static_cast<double>(value) * value;
  return std::sqrt(squares);
}

void check_against_reference(const Context& gpu, const AttentionShape& shape, float spread = 1.5f) {
  SCOPED_TRACE(fmt::format("batch {} seq {} heads {}/{} dim {}", shape.batch, shape.seq, shape.num_heads,
                           shape.num_query_groups, shape.head_dim));
  const Context cpu = Context::cpu();
  Problem expected(cpu, shape, spread), actual(gpu, shape, spread);
  expected.forward();
  actual.forward();
  // A GPU rounds the probabilities to BF16 before the GEMM with v (2^-9 each, averaged over the keys), then rounds o.
  EXPECT_LT(relative_error(actual.o.floats(), expected.o.floats()), 5e-3);
  EXPECT_LT(relative_error(actual.lse.floats(), expected.lse.floats()), 1e-5);
  // The backward pass starts from the same o and lse.
  actual.o.fill_raw(expected.o.raw().data());
  actual.lse.fill_raw(expected.lse.raw().data());
  expected.backward();
  actual.backward();
  const int64_t q = shape.num_heads * shape.head_dim, kv = shape.num_query_groups * shape.head_dim;
  const int64_t bounds[] = {0, q, q + kv, q + 2 * kv};
  for (int part = 0; part < 3; ++part) {
    const std::vector<float> want = columns(expected.dqkv, bounds[part], bounds[part + 1]);
    const std::vector<float> got = columns(actual.dqkv, bounds[part], bounds[part + 1]);
    // A softmax of one key has no gradient: dq and dk contain only the rounding errors of sums that cancel.
    if (shape.window == 1 && part < 2) {
      EXPECT_LT(length(got), 1e-3 * length(columns(expected.dqkv, q + kv, q + 2 * kv)))
          << "index of dq, dk: " << part;
      continue;
    }
    // p and ds are rounded to BF16 before the three GEMMs; with groups also each head's dk and dv.
    EXPECT_LT(relative_error(got, want), 1.2e-2) << "index of dq, dk, dv: " << part;
  }
}

// With head_dim of te-train's own kernels, and of cuDNN's banded mask.
TEST(AttentionGpu, SlidingWindowAgainstTheReference) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (const int64_t dim : {64, 128, 80})
    for (const auto& [seq, window] :
         {std::pair<int64_t, int64_t>{256, 64}, {256, 1}, {200, 77}, {1024, 1023}}) {
      AttentionShape shape = shape_of(2, seq, 4, 2, dim);
      shape.window = window;
      check_against_reference(gpu, shape);
    }
}

TEST(AttentionGpu, AgainstReference) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (int64_t seq : {256, 1024})
    for (int64_t dim : {64, 128})
      for (int64_t groups : {2, 8}) check_against_reference(gpu, shape_of(2, seq, 8, groups, dim));
}

TEST(AttentionGpu, RaggedSequencesAndSmallHeads) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (int64_t seq : {2, 7, 64, 127, 129, 200, 385}) {
    check_against_reference(gpu, shape_of(3, seq, 4, 2, 64));
    check_against_reference(gpu, shape_of(2, seq, 4, 2, 128));
  }
  check_against_reference(gpu, shape_of(2, 128, 4, 4, 32));
  check_against_reference(gpu, shape_of(2, 192, 6, 2, 80));
  check_against_reference(gpu, shape_of(1, 128, 4, 1, 128));
}

// cuDNN computes heads wider than those of te-train's own kernels, unless its deterministic backward pass does not
// support them.
TEST(AttentionGpu, WideHeads) {
  TE_REQUIRE_GPU();
  for (const bool deterministic : {false, true}) {
    const Context gpu = Context::cuda(0, {.deterministic_attention = deterministic});
    for (const int64_t dim : {136, 192, 256})
      for (const int64_t groups : {2, 4}) {
        const AttentionShape shape = shape_of(2, 300, 4, groups, dim);
        const AttentionKernels kernels = attention_kernels(gpu, shape, DType::bf16);
        RecordProperty(fmt::format("kernels_{}_{}", dim, deterministic ? "deterministic" : "fastest"),
                       static_cast<int>(kernels));
        if (!deterministic && device_caps(gpu).hopper_kernels) {
          EXPECT_EQ(kernels, AttentionKernels::cudnn) << "head_dim " << dim;
        }
        check_against_reference(gpu, shape);
      }
    AttentionShape windowed = shape_of(2, 1024, 4, 2, 256);
    windowed.window = 100;
    check_against_reference(gpu, windowed);
  }
}

// attention_kernels() reports FP32 kernels for combinations that cuDNN lacks, so that a run can warn about it.
TEST(AttentionGpu, ReportsKernels) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  const bool hopper = device_caps(gpu).hopper_kernels;
  EXPECT_EQ(attention_kernels(gpu, shape_of(2, 256, 4, 2, 128), DType::bf16),
            hopper ? AttentionKernels::flash : AttentionKernels::cudnn);
  EXPECT_EQ(attention_kernels(gpu, shape_of(2, 256, 4, 2, 80), DType::bf16), AttentionKernels::cudnn);
  EXPECT_EQ(attention_kernels(gpu, shape_of(2, 256, 4, 2, 128), DType::f32), AttentionKernels::tiled);
  AttentionShape windowed = shape_of(2, 256, 4, 2, 128, 0.1f);
  windowed.window = 64;
  EXPECT_EQ(attention_kernels(gpu, windowed, DType::bf16), AttentionKernels::tiled);
  EXPECT_EQ(attention_kernels(Context::cpu(), windowed, DType::bf16), AttentionKernels::cpu);
  // Documents and a window.
  for (const int64_t dim : {64, 80, 96, 128}) {
    AttentionShape both = shape_of(2, 256, 4, 2, dim);
    both.window = 64;
    both.max_documents = 8;
    EXPECT_EQ(attention_kernels(gpu, both, DType::bf16),
              hopper && dim % 64 == 0 ? AttentionKernels::flash : AttentionKernels::tiled)
        << "head_dim " << dim;
  }
}

// More query blocks than can be resident, from more heads than are in flight at a time.
TEST(AttentionGpu, ManyHeads) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  check_against_reference(gpu, shape_of(8, 512, 24, 24, 64));
  check_against_reference(gpu, shape_of(4, 512, 20, 10, 128));
}

// Scores of several hundred: the maximum grows from tile to tile, and most probabilities are 0.
TEST(AttentionGpu, LargeScores) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (int64_t dim : {64, 128}) check_against_reference(gpu, shape_of(2, 700, 4, 2, dim), 8.0f);
}

// Every output is written regardless of earlier contents, and nothing is read that the call has not written.
TEST(AttentionGpu, IgnoresOldBufferContents) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (int64_t dim : {64, 128}) {
    SCOPED_TRACE(fmt::format("head_dim {}", dim));
    Problem problem(gpu, shape_of(2, 600, 4, 2, dim));
    // Repeats a pass with NaN in its outputs and its workspace.
    const auto expect_same_again = [&](const auto& pass, std::initializer_list<const TestTensor*> outputs) {
      pass();
      std::vector<std::vector<uint8_t>> expected;
      for (const TestTensor* output : outputs) {
        expected.push_back(output->raw());
        gpu.fill_bytes(output->get(), 0xff);
      }
      gpu.fill_bytes(problem.workspace, 0xff);
      pass();
      auto want = expected.begin();
      for (const TestTensor* output : outputs) EXPECT_EQ(count_different(output->raw(), *want++, 2), 0);
    };
    expect_same_again([&] { problem.forward(); }, {&problem.o, &problem.lse});
    expect_same_again([&] { problem.backward(); }, {&problem.dqkv});
  }
}

// More key blocks than can be resident, so that sums of dq wait for each other.
TEST(AttentionGpu, BackwardOfManyHeadsIsDeterministic) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (int64_t dim : {64, 128}) {
    Problem problem(gpu, shape_of(4, 2048, 16, 8, dim));
    problem.forward();
    problem.backward();
    const std::vector<uint8_t> expected = problem.dqkv.raw();
    for (int i = 0; i < 20; ++i) {
      problem.backward();
      ASSERT_EQ(count_different(problem.dqkv.raw(), expected, 2), 0) << "head_dim " << dim << ", call " << i;
    }
  }
}

TEST(AttentionGpu, IsDeterministic) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (int64_t groups : {2, 8}) {
    Problem one(gpu, shape_of(2, 1024, 8, groups, 128)), two(gpu, shape_of(2, 1024, 8, groups, 128));
    one.forward(), one.backward();
    for (int i = 0; i < 4; ++i) {
      two.forward(), two.backward();
      EXPECT_EQ(count_different(one.o.raw(), two.o.raw(), 2), 0);
      EXPECT_EQ(count_different(one.dqkv.raw(), two.dqkv.raw(), 2), 0);
    }
  }
}

/// q = 0, so that every visible key has the probability 1 / (i + 1), and v_j is the unit vector of j % dim. If dim
/// equals seq, o holds the dropout mask of query i, scaled by 1 / ((i + 1)(1 - dropout)).
void fill_identity_values(Problem& problem) {
  const AttentionShape& s = problem.shape;
  std::vector<float> qkv(static_cast<size_t>(problem.qkv.get().numel()), 0.0f);
  const int64_t cols = problem.qkv.get().cols(), v0 = (s.num_heads + s.num_query_groups) * s.head_dim;
  for (int64_t row = 0; row < problem.rows; ++row)
    for (int64_t g = 0; g < s.num_query_groups; ++g)
      qkv[static_cast<size_t>(row * cols + v0 + g * s.head_dim + row % s.seq)] = 1.0f;
  problem.qkv.fill(qkv);
}

TEST(AttentionGpu, DropoutKeepsExpectedFractionAndFollowsSeed) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  constexpr double kDropout = 0.25;
  Problem problem(gpu, shape_of(8, 128, 8, 8, 128, kDropout));
  fill_identity_values(problem);
  problem.forward(1);
  const std::vector<float> o = problem.o.floats();
  int64_t kept = 0, total = 0;
  for (int64_t row = 0; row < problem.rows; ++row) {
    const int64_t query = row % 128;
    for (int64_t head = 0; head < 8; ++head) {
      for (int64_t key = 0; key < 128; ++key) {
        const float value = o[static_cast<size_t>((row * 8 + head) * 128 + key)];
        if (key > query) {
          ASSERT_EQ(value, 0.0f) << "a masked key has weight";
          continue;
        }
        ++total;
        if (value == 0.0f) continue;
        ++kept;
        const double expected = 1.0 / (static_cast<double>(query + 1) * (1.0 - kDropout));
        ASSERT_NEAR(value, expected, expected * 1e-2);  // three roundings to BF16
      }
    }
  }
  // 528,384 draws: four standard deviations are 0.0024.
  EXPECT_NEAR(static_cast<double>(kept) / static_cast<double>(total), 1.0 - kDropout, 0.0024);

  const std::vector<uint8_t> first = problem.o.raw();
  problem.forward(1);
  EXPECT_EQ(count_different(problem.o.raw(), first, 2), 0);
  problem.forward(2);
  EXPECT_GT(count_different(problem.o.raw(), first, 2), 10000);
}

TEST(AttentionGpu, RanksWithOtherHeadsDropOtherElements) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  Problem whole(gpu, shape_of(2, 128, 4, 4, 128, 0.25f));
  fill_identity_values(whole);
  whole.forward(1);
  std::vector<std::vector<uint8_t>> masks;
  for (int64_t first : {0, 4, 8}) {
    AttentionShape shape = shape_of(2, 128, 4, 4, 128, 0.25f);
    shape.first_head = first, shape.total_heads = 12;
    Problem part(gpu, shape);
    fill_identity_values(part);
    part.forward(1);
    masks.push_back(part.o.raw());
  }
  EXPECT_EQ(masks[0], whole.o.raw());
  EXPECT_GT(count_different(masks[1], masks[0], 2), 10000);
  EXPECT_GT(count_different(masks[2], masks[0], 2), 10000);
  EXPECT_GT(count_different(masks[2], masks[1], 2), 10000);
}

TEST(AttentionGpu, DropoutBackwardUsesTheForwardMask) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  constexpr double kDropout = 0.25;
  const int64_t seq = 128, heads = 2;
  Problem problem(gpu, shape_of(2, seq, heads, heads, 128, kDropout));
  fill_identity_values(problem);
  problem.forward(9);
  // With d_o of query i the unit vector of i, column i of dv_j holds the mask of query i for key j, so dv is the
  // transpose of o.
  std::vector<float> d_o(static_cast<size_t>(problem.d_o.get().numel()), 0.0f);
  for (int64_t row = 0; row < problem.rows; ++row)
    for (int64_t head = 0; head < heads; ++head)
      d_o[static_cast<size_t>((row * heads + head) * 128 + row % seq)] = 1.0f;
  problem.d_o.fill(d_o);
  problem.backward(9);
  const std::vector<float> o = problem.o.floats();
  const std::vector<float> dv = columns(problem.dqkv, 2 * heads * 128, 3 * heads * 128);
  for (int64_t b = 0; b < 2; ++b)
    for (int64_t head = 0; head < heads; ++head)
      for (int64_t i = 0; i < seq; ++i)
        for (int64_t j = 0; j < seq; ++j) {
          const float forward = o[static_cast<size_t>(((b * seq + i) * heads + head) * 128 + j)];
          const float backward = dv[static_cast<size_t>(((b * seq + j) * heads + head) * 128 + i)];
          ASSERT_NEAR(backward, forward, 1e-2 * forward) << "query " << i << " key " << j;
        }
}

// Both of cuDNN's algorithms, with a head_dim that te-train's own kernels do not support.
TEST(AttentionGpu, AtomicAlgorithmAgreesWithTheDeterministicOne) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  Problem deterministic(gpu, shape_of(2, 512, 8, 4, 80));
  deterministic.forward(), deterministic.backward();
  const Context with_atomics = Context::cuda(0, {.deterministic_attention = false});
  Problem atomic(with_atomics, shape_of(2, 512, 8, 4, 80));
  atomic.forward(), atomic.backward();
  EXPECT_LT(relative_error(atomic.dqkv.floats(), deterministic.dqkv.floats()), 1e-2);
}

}  // namespace
}  // namespace te::kernels
