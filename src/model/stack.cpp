#include "model/stack.h"

#include "config/adapter.h"
#include "model/pipeline_chunks.h"

namespace te::model {

Stack::Stack(const config::Config& run, const parallel::Groups& groups, fp8::Recipe& recipe,
             parallel::TensorParallel& tensor, const ContextParallel& ranks,
             const FeedForwardFactory& make_feed_forward)
    : expert_ranks(groups.expert().size() == 1
                       ? nullptr
                       : std::make_unique<ExpertRanks>(groups.expert(), run.parallel.moe_dispatch_factor)),
      config(LayerConfig::of(run, tensor, expert_ranks.get())) {
  const auto end_unit = [&] {
    units.push_back({units.empty() ? 0 : units.back().end, parameters.parameters().size()});
  };
  config.ranks = &ranks;
  if (groups.data().size() > 1) config.batch_ranks = &groups.data();
  const bool tied = config.model.tie_word_embeddings;
  parameters.train_only(config::trained_parameters(run), run.adapter.on());
  // 1. Embedding.
  if (groups.first_stage()) {
    embedding = std::make_unique<VocabParallelEmbedding>(config, parameters, tensor, ranks);
    embedding->words()->copied = tied && !groups.last_stage();
    parameters.end_layer();
    end_unit();
  }
  // 2. Layers: chunks of the model are assigned to the stages round-robin.
  const auto stages = static_cast<size_t>(groups.grid()[parallel::Axis::pipeline]);
  const auto split = pipeline_chunks(run, static_cast<int>(stages));
  for (auto chunk = static_cast<size_t>(groups.at()[parallel::Axis::pipeline]); chunk < split.size();
       chunk += stages) {
    const auto [first, count] = split[chunk];
    chunks.push_back({layers.size(), static_cast<size_t>(count)});
    for (int index = first; index < first + count; ++index) {
      const LayerConfig layer = config.of_layer(index);
      layers.emplace_back(index, layer, parameters, recipe, rope.of(layer.model), tensor, ranks,
                          make_feed_forward);
      end_unit();
    }
    parameters.end_chunk();
  }
  // 3. Final norm and output layer.
  if (groups.last_stage()) {
    final_layernorm =
        std::make_unique<Norm>(ParameterRole::final_norm, kNoLayer, config.model, parameters, tensor);
    output_layer = std::make_unique<OutputLayer>(
        config, parameters, tied && embedding ? embedding->words() : nullptr, recipe, tensor);
    parameters.end_layer();
    end_unit();
  }
}

}  // namespace te::model
