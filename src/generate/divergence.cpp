#include "generate/divergence.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "generate/sampler.h"

namespace te::generate {
namespace {

constexpr size_t kChunk = 64;  ///< tokens per pass, which bounds the memory of the logits

double log_sum_exp(std::span<const float> logits, double largest) {
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(logit - largest);
  return largest + std::log(sum);
}

}  // namespace

void add_position(std::span<const float> reference, std::span<const float> model, Divergence& sum) {
  check_logits(reference);
  check_logits(model);
  const auto top = std::ranges::max_element(reference), model_top = std::ranges::max_element(model);
  const double reference_sum = log_sum_exp(reference, *top), model_sum = log_sum_exp(model, *model_top);
  double kl = 0.0;
  for (size_t i = 0; i < reference.size(); ++i) {
    const double log_p = reference[i] - reference_sum;
    if (log_p > -INFINITY) kl += std::exp(log_p) * (log_p - (model[i] - model_sum));
    sum.largest_difference =
        std::max(sum.largest_difference, std::abs(double{reference[i]} - double{model[i]}));
  }
  kl = std::max(kl, 0.0);  // may be negative because of rounding
  ++sum.tokens;
  sum.mean_kl += (kl - sum.mean_kl) / static_cast<double>(sum.tokens);
  sum.largest_kl = std::max(sum.largest_kl, kl);
  if (top - reference.begin() == model_top - model.begin()) ++sum.agreeing;
}

Divergence compare(LoadedModel& reference, LoadedModel& model, std::span<const int32_t> tokens,
                   int64_t length, const std::function<void(int64_t)>& progress) {
  const auto vocab = static_cast<size_t>(reference.decoder.vocab_size());
  const auto max_length = static_cast<size_t>(length);
  TE_CHECK(reference.decoder.vocab_size() == model.decoder.vocab_size(),
           "the models have different vocabularies: {} and {} tokens", reference.decoder.vocab_size(),
           model.decoder.vocab_size());
  Divergence result;
  for (size_t begin = 0; begin < tokens.size(); begin += max_length) {
    const std::span<const int32_t> sample =
        tokens.subspan(begin, std::min(max_length, tokens.size() - begin));
    reference.decoder.reset(0);
    model.decoder.reset(0);
    for (size_t first = 0; first < sample.size(); first += kChunk) {
      const std::vector<Continuation> next = {
          {0, sample.subspan(first, std::min(kChunk, sample.size() - first))}};
      const std::span<const float> expected = reference.decoder.append_all(reference.context, next),
                                   actual = model.decoder.append_all(model.context, next);
      for (size_t at = 0; at < expected.size(); at += vocab)
        add_position(expected.subspan(at, vocab), actual.subspan(at, vocab), result);
      if (progress) progress(result.tokens);
    }
  }
  return result;
}

}  // namespace te::generate
