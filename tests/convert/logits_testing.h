// Computes the logits of another program's model with te-train.
#pragma once

#include <span>

#include "convert/convert_testing.h"
#include "core/memory_plan.h"
#include "generate/decoder.h"
#include "generate/model_source.h"
#include "generate/run_config.h"

namespace te::testing {

/// Logits of a Hugging Face folder or a checkpoint; `tokens` are `batch` sequences of the same length.
inline std::vector<float> te_logits(const fs::path& path, const std::string& dtype,
                                    const std::vector<int32_t>& tokens, int64_t batch) {
  const auto source = generate::open_model(path);
  const Context context = Context::cpu();
  const auto length = static_cast<int64_t>(tokens.size()) / batch;
  const config::Config config =
      generate::run_config(*source, {.device = "cpu", .dtype = dtype}, context, length, 16);
  const parallel::Groups groups = parallel::Groups::single();
  generate::Decoder decoder(config, groups, {.batch = batch});
  MemoryPlan plan;
  decoder.plan(plan, context);
  const DeviceBuffer memory = plan.allocate(context);
  decoder.bind(context);
  generate::load_weights(context, *source, decoder.parameters());
  decoder.quantize_weights(context);
  std::vector<generate::Continuation> next;
  for (int64_t i = 0; i < batch; ++i)
    next.push_back(
        {i, std::span(tokens).subspan(static_cast<size_t>(i * length), static_cast<size_t>(length))});
  const std::span<const float> logits = decoder.append_all(context, next);
  return {logits.begin(), logits.end()};
}

}  // namespace te::testing
