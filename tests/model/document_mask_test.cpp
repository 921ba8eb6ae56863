// Packed samples: with a document mask, the results for a document do not depend on the other documents of the sample.
#include <algorithm>

#include "model/tiny_model.h"
#include "testing/testing.h"

namespace te {
namespace {

constexpr int kBoundary = 7;  // start of the second document in every sample of 16 tokens

// Loss and a weight gradient of the second documents of a batch whose first documents are random with `seed`.
std::pair<double, std::vector<float>> second_documents(bool masked, uint64_t seed) {
  config::Config config = testing::tiny_config(config::Family::llama);
  config.data.document_mask = masked;
  config.data.max_documents = 2;
  config.data.synthetic = false;  // synthetic data excludes the mask
  config.data.train = {{1.0, "unused"}};
  testing::TinyModel tiny(config);
  const auto tokens = static_cast<size_t>(tiny.tokens().numel());
  std::vector<int32_t> ids(tokens), targets(tokens, -1), starts(tokens, 0);
  for (size_t i = 0; i < tokens; ++i) {
    const int position = static_cast<int>(i) % 16;
    const bool second = position >= kBoundary;
    ids[i] = static_cast<int32_t>(philox(second ? 1 : seed, 5, i).word[0] % 61);
    if (second) targets[i] = static_cast<int32_t>(philox(2, 6, i).word[0] % 61);
    if (second) starts[i] = kBoundary;
  }
  tiny.set_batch(ids, targets);
  model::Pass pass;
  if (masked) pass.document_start = {starts.data(), DType::i32, {static_cast<int64_t>(tokens)}};
  const double loss = tiny.forward_backward(pass);
  return {loss, tiny.read(tiny.parameter("layers.0.self_attention.linear_qkv.weight").grad)};
}

TEST(DocumentMask, DocumentsAreIndependent) {
  const auto one = second_documents(true, 3), other = second_documents(true, 4);
  EXPECT_EQ(one.first, other.first);
  EXPECT_EQ(one.second, other.second);
}

TEST(DocumentMask, WithoutTheMaskDocumentsAreDependent) {
  EXPECT_NE(second_documents(false, 3).first, second_documents(false, 4).first);
  EXPECT_NE(second_documents(false, 3).first, second_documents(true, 3).first);
}

}  // namespace
}  // namespace te
