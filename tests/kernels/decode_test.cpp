// CPU reference of attention against a cache, compared with double precision and with the causal attention of training.
#include "kernels/attention/attention.h"
#include "kernels/decode_cases.h"
#include "kernels/rope/rope.h"

namespace te::testing {
namespace {

using kernels::attention_decode;
using kernels::cache_append;

TEST(DecodeTest, MatchesDoublePrecision) {
  const Context context = Context::cpu();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const DecodeCase& c : decode_cases()) {
      DecodeData data(context, c, dtype);
      attention_decode(context, data.decode());
      const std::vector<float> expected =
          decode_expected(c, data.qkv.floats(), data.k.floats(), data.v.floats());
      // FP32: scores of up to 256 products and sums of up to 333 terms. BF16: one rounding of the output, 2^-9.
      EXPECT_LT(max_relative_error(data.o.floats(), expected, 0.1), dtype == DType::f32 ? 2e-5 : 5e-3)
          << c.heads << " heads, head_dim " << c.dim;
    }
  }
}

TEST(DecodeTest, AStepRotatesAppendsAndAttends) {
  const Context context = Context::cpu();
  const DecodeCase c{3, 40, 4, 2, 8, {2, 0, 1}, {39, 0, 7}};
  DecodeData step(context, c, DType::f32), three(context, c, DType::f32);
  TestTensor cos(context, DType::f32, {40, 4}), sin(context, DType::f32, {40, 4});
  cos.fill_normal(7), sin.fill_normal(8);
  kernels::attention_step(context, {step.decode(), cos, sin});
  kernels::rope(context, {.qkv = three.qkv,
                          .cos = cos,
                          .sin = sin,
                          .seq = 40,
                          .num_heads = 4,
                          .num_query_groups = 2,
                          .head_dim = 8,
                          .positions = three.positions});
  cache_append(context, three.append());
  attention_decode(context, three.decode());
  EXPECT_EQ(step.o.floats(), three.o.floats());
  EXPECT_EQ(step.k.floats(), three.k.floats());
  EXPECT_EQ(step.v.floats(), three.v.floats());
}

TEST(DecodeTest, AppendWritesOnlyTheRowsPositions) {
  const Context context = Context::cpu();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const DecodeCase& c : decode_cases()) {
      DecodeData data(context, c, dtype);
      std::vector<float> k = data.k.floats(), v = data.v.floats();
      const std::vector<float> qkv = data.qkv.floats();
      cache_append(context, data.append());
      const int64_t width = c.groups * c.dim, columns = (c.heads + 2 * c.groups) * c.dim;
      for (size_t r = 0; r < c.positions.size(); ++r) {
        const int64_t place = (c.sequences[r] * c.length + c.positions[r]) * width;
        const float* key = qkv.data() + static_cast<int64_t>(r) * columns + c.heads * c.dim;
        std::copy_n(key, width, k.data() + place);
        std::copy_n(key + width, width, v.data() + place);
      }
      EXPECT_EQ(data.k.floats(), k);
      EXPECT_EQ(data.v.floats(), v);
    }
  }
}

// Two sequences as in training, and row by row against the cache; also with a sliding window.
TEST(DecodeTest, EqualsCausalAttention) {
  const Context context = Context::cpu();
  for (const int64_t window : {0, 1, 4}) {
    const kernels::AttentionShape shape{.batch = 2,
                                        .seq = 19,
                                        .num_heads = 4,
                                        .num_query_groups = 2,
                                        .head_dim = 24,
                                        .softmax_scale = DecodeData::kScale,
                                        .window = window};
    DecodeCase c{2, 25, 4, 2, 24, {}, {}, window};
    for (int32_t r = 0; r < 38; ++r) c.sequences.push_back(r / 19), c.positions.push_back(r % 19);
    DecodeData data(context, c, DType::f32);
    TestTensor o(context, DType::f32, {38, 4 * 24}), lse(context, DType::f32, {2, 4, 19});
    kernels::attention_forward(context, {.shape = shape, .qkv = data.qkv, .o = o, .lse = lse});
    cache_append(context, data.append());
    attention_decode(context, data.decode());
    EXPECT_LT(max_relative_error(data.o.floats(), o.floats(), 0.1), 1e-5) << "window " << window;
  }
}

TEST(DecodeTest, RejectsWrongArguments) {
  const Context context = Context::cpu();
  const DecodeCase good{2, 9, 4, 2, 8, {1, 0}, {8, 0}};
  DecodeData data(context, good, DType::f32);
  attention_decode(context, data.decode());
  for (const auto& [sequence, position] : {std::pair{2, 0}, {-1, 0}, {0, 9}, {0, -1}}) {
    DecodeData bad(context, good, DType::f32);
    bad.sequences.fill_ints({0, sequence}), bad.positions.fill_ints({0, position});
    EXPECT_THROW(attention_decode(context, bad.decode()), InternalError);
    EXPECT_THROW(cache_append(context, bad.append()), InternalError);
  }
  kernels::AttentionDecode args = data.decode();
  args.o = data.qkv;
  EXPECT_THROW(attention_decode(context, args), InternalError);
  args = data.decode();
  args.cache.v = data.qkv;
  EXPECT_THROW(attention_decode(context, args), InternalError);
}

}  // namespace
}  // namespace te::testing
