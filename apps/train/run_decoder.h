// What decoders have in common that run beside te-train's training, on its weights: texts (decoded_samples.h) and tasks
// (decoded_tasks.h). Such a decoder holds its cache and the activations of a pass, and no weights; it runs in BF16 (the
// run's own dtype) in FP8 runs, too, on a stream and with choices of its own, so that training computes the same bits
// with and without it.
#pragma once

#include <memory>

#include "config/config.h"
#include "core/device.h"
#include "text/tokenizer.h"

namespace te::apps {

/// The files of data.tokenizer, or those that the checkpoints keep, where the run goes on on another machine.
std::unique_ptr<text::Tokenizer> open_run_tokenizer(const config::Config& config);

/// The run's model, for passes of few tokens of sequences of up to `length`.
config::Config run_decoder_config(config::Config config, int64_t length);

/// GEMMs of the run are tuned for its own shapes, in its own time.
Context own_context(const Context& context);

}  // namespace te::apps
