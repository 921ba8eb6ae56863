// The loss of a model on a dataset.
#pragma once

#include <functional>

#include "core/device.h"
#include "data/sampler.h"
#include "generate/model_source.h"
#include "parallel/groups.h"
#include "parallel/world.h"

namespace te::generate {

struct Perplexity {
  int64_t samples = 0, tokens = 0;  ///< tokens that were predicted
  double loss = 0;                  ///< mean of -log probability
  double seconds = 0;
  double perplexity() const;
};

/// Reads all samples of the source once. config: the model, data.seq_length() as its sequence,
/// training.micro_batch_size samples at a time. All ranks call this alike and get the same result. `progress`: called
/// with the samples done.
Perplexity evaluate(const config::Config& config, const Context& context, const parallel::Groups& groups,
                    parallel::World& world, const ModelSource& source, const data::BatchSource& data,
                    const std::function<void(int64_t)>& progress = {});

}  // namespace te::generate
