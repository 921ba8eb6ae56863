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
  int64_t samples = 0, tokens = 0;  ///< tokens: number of predicted tokens
  double loss = 0;                  ///< mean of -log probability, in nats
  double seconds = 0;
  double perplexity() const;
};

/// data.max_documents that passes of `batch` samples need. Reads all samples.
int64_t documents_per_sample(const data::BatchSource& data, int64_t batch);

/// Evaluates all samples of `data` once, training.micro_batch_size samples at a time. `config`: the model with
/// data.seq_length() as its sequence length; with data.document_mask attention does not cross documents. Collective;
/// all ranks get the same result. Calls `progress` with the number of samples done.
Perplexity evaluate(const config::Config& config, const Context& context, const parallel::Groups& groups,
                    parallel::World& world, const ModelSource& source, const data::BatchSource& data,
                    const std::function<void(int64_t)>& progress = {});

}  // namespace te::generate
