#include "config/pipeline_split.h"

#include <charconv>
#include <numeric>

#include "config/precision_overrides.h"
#include "config/text.h"
#include "core/error.h"
#include "core/strings.h"

namespace te::config {
namespace {

constexpr double kFp8Time = 0.53, kAttentionTime = 2.0, kOtherOps = 1.08;

[[noreturn]] void refuse(const std::string& split) {
  user_error("parallel.pipeline_split: {} is neither even nor balanced nor a list of layers such as 9,8,8,7",
             in_quotes(split));
}

/// FLOPs of a linear's forward GEMM per token, weighted by the relative time of its precision.
double gemm_time(const Config& config, LinearKind linear, int64_t layer, double parameters) {
  const PrecisionConfig& precision = config.precision;
  const bool fp8 =
      precision.fp8 != Fp8Mode::off &&
      linear_precision(precision, {static_cast<int>(layer), linear}, config.model.num_layers).quantized();
  return 2.0 * parameters * (fp8 ? kFp8Time : 1.0);
}

}  // namespace

std::vector<int> numbers_of_split(const std::string& split) {
  std::vector<int> numbers;
  if (split == "even" || split == "balanced") return numbers;
  for (const std::string_view part : te::split(split, ',')) {
    const std::string_view text = trimmed(part, " ");
    int number = 0;
    const auto [at, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc{} || at != text.data() + text.size() || number < 1) refuse(split);
    numbers.push_back(number);
  }
  return numbers;
}

void check_pipeline_split(const Config& config) {
  const ParallelConfig& p = config.parallel;
  const std::vector<int> numbers = numbers_of_split(p.pipeline_split);
  if (numbers.empty()) return;
  const int64_t chunks = p.pipeline * p.virtual_stages;
  if (static_cast<int64_t>(numbers.size()) != chunks) {
    user_error(
        "parallel.pipeline_split {} has {} numbers, but parallel.pipeline * parallel.virtual_stages = {} * "
        "{} = {} chunks need one each",
        p.pipeline_split, numbers.size(), p.pipeline, p.virtual_stages, chunks);
  }
  const int64_t sum = std::accumulate(numbers.begin(), numbers.end(), int64_t{0});
  if (sum != config.model.num_layers)
    user_error("parallel.pipeline_split {} has {} layers in total, but model.num_layers is {}",
               p.pipeline_split, sum, config.model.num_layers);
}

double output_layer_in_layers(const Config& config) {
  const ModelConfig& m = config.model;
  const double hidden = static_cast<double>(m.hidden_size), span = static_cast<double>(m.attention_span()),
               seq = static_cast<double>(m.seq_length);
  const int64_t middle = m.num_layers / 2;
  const int64_t feed_forward = m.feed_forward_weights(middle, true), parts = m.gated() ? 3 : 2;
  const double keys = span * (2.0 * seq - span) / seq;  // average number of keys of two tokens
  const double gemms =
      gemm_time(config, LinearKind::qkv, middle, hidden * static_cast<double>(m.qkv_width())) +
      gemm_time(config, LinearKind::proj, middle, hidden * static_cast<double>(m.attention_width())) +
      gemm_time(config, LinearKind::fc1, middle, static_cast<double>(feed_forward / parts * (parts - 1))) +
      gemm_time(config, LinearKind::fc2, middle, static_cast<double>(feed_forward / parts));
  const double attention = kAttentionTime * 2.0 * keys * static_cast<double>(m.attention_width());
  const double output_layer = gemm_time(config, LinearKind::output_layer, m.num_layers,
                                        hidden * static_cast<double>(m.padded_vocab_size()));
  return output_layer / (kOtherOps * (gemms + attention));
}

}  // namespace te::config
