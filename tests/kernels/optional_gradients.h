// Gradients of parameters that are not trained are left out: the other outputs of the backward pass have the same bits.
// For the tests of both backends.
#pragma once

#include <utility>
#include <vector>

#include "kernels/embedding/embedding.h"
#include "kernels/norm/norm.h"
#include "kernels/qk_norm_cases.h"

namespace te::testing {

inline void norm_without_gradients(const Context& context, DType grads) {
  constexpr int64_t kRows = 37, kHidden = 64;
  const auto run = [&](bool gamma, bool beta, bool bias) {
    TestTensor x(context, DType::bf16, {kRows, kHidden}), dy(context, DType::bf16, {kRows, kHidden}),
        gain(context, DType::bf16, {kHidden}), mean(context, DType::f32, {kRows}),
        rstd(context, DType::f32, {kRows}), dx(context, DType::bf16, {kRows, kHidden}),
        dgamma(context, grads, {kHidden}), dbeta(context, grads, {kHidden}), dbias(context, grads, {kHidden}),
        scratch(context, DType::f32, {kernels::norm_backward_scratch_elements(kHidden)});
    x.fill_normal(1), dy.fill_normal(2), gain.fill_normal(3, 0.2f, 1.0f), mean.fill_normal(4, 0.1f);
    rstd.fill_value(0.9f), dgamma.fill_value(1.0f), dbeta.fill_value(2.0f), dbias.fill_value(3.0f);
    kernels::NormBackward args;
    args.kind = kernels::NormKind::layer;
    args.x = x, args.dy = dy, args.gamma = gain, args.mean = mean, args.rstd = rstd, args.dx = dx;
    args.scratch = scratch;
    if (gamma) args.dgamma = dgamma;
    if (beta) args.dbeta = dbeta;
    if (bias) args.dbias = dbias;
    kernels::norm_backward(context, args);
    return std::vector{dx.raw(), dgamma.raw(), dbeta.raw(), dbias.raw()};
  };
  const auto all = run(true, true, true), none = run(false, false, false);
  EXPECT_EQ(none[0], all[0]);
  for (const int kept : {1, 2, 3}) {
    const auto some = run(kept == 1, kept == 2, kept == 3);
    EXPECT_EQ(some[0], all[0]);
    for (size_t i : {1u, 2u, 3u}) {
      EXPECT_EQ(some[i], static_cast<int>(i) == kept ? all[i] : none[i])
          << "only " << kept << ", output " << i;
    }
    EXPECT_NE(all[static_cast<size_t>(kept)], none[static_cast<size_t>(kept)]);
  }
}

inline void qk_norm_without_gradients(const Context& context) {
  const auto run = [&](bool q, bool k) {
    QkNormData data(context, {70, 4, 2, 16, false}, DType::bf16);
    kernels::qk_norm_forward(context, data.forward());
    kernels::QkNormBackward args = data.backward();
    if (!q) args.dq_gain = {};
    if (!k) args.dk_gain = {};
    kernels::qk_norm_backward(context, args);
    return std::vector{data.dqkv.raw(), data.dq_gain.raw(), data.dk_gain.raw()};
  };
  const auto all = run(true, true), none = run(false, false), q = run(true, false), k = run(false, true);
  for (const auto* some : {&none, &q, &k}) EXPECT_EQ((*some)[0], all[0]);
  EXPECT_EQ(q[1], all[1]);
  EXPECT_EQ(q[2], none[2]);
  EXPECT_EQ(k[1], none[1]);
  EXPECT_EQ(k[2], all[2]);
  EXPECT_NE(all[1], none[1]);
}

inline void embedding_without_gradients(const Context& context, DType grads) {
  constexpr int64_t kSeq = 8, kRows = 2 * kSeq, kVocab = 11, kHidden = 24;
  const auto run = [&](bool table, bool positions) {
    TestTensor tokens(context, DType::i32, {kRows}), dout(context, DType::bf16, {kRows, kHidden}),
        dtable(context, grads, {kVocab, kHidden}), dpositions(context, grads, {kSeq, kHidden});
    std::vector<int32_t> ids;
    for (int32_t i = 0; i < kRows; ++i) ids.push_back(i * 7 % kVocab);
    tokens.fill_ints(ids), dout.fill_normal(1), dtable.fill_value(1.0f), dpositions.fill_value(2.0f);
    const int64_t bytes = kernels::embedding_backward_workspace_bytes(context, kRows, kHidden);
    TestTensor workspace(context, DType::u8, {std::max<int64_t>(bytes, 1)});
    kernels::embedding_backward(context, {.tokens = tokens,
                                          .dout = dout,
                                          .seq = kSeq,
                                          .dtable = table ? dtable.get() : Tensor{},
                                          .dpositions = positions ? dpositions.get() : Tensor{},
                                          .workspace = workspace});
    return std::pair(dtable.raw(), dpositions.raw());
  };
  const auto all = run(true, true), none = run(false, false), positions = run(false, true);
  EXPECT_EQ(positions.first, none.first);
  EXPECT_EQ(positions.second, all.second);
  EXPECT_NE(all.second, none.second);
}

}  // namespace te::testing
