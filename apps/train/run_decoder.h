// Common code of decoders that use the weights of a training run: samples (decoded_samples.h) and evaluation tasks
// (decoded_tasks.h). Such a decoder owns its KV cache and the activations of a pass, but no weights. It runs in the
// run's high-precision dtype (BF16), also in FP8 runs, and has its own CUDA stream and GEMM algorithms, so that
// training is bitwise the same with and without it.
#pragma once

#include <memory>

#include "config/config.h"
#include "core/device.h"
#include "text/tokenizer.h"

namespace te::apps {

/// Opens the files of data.tokenizer, or those stored with the checkpoints if the run resumes on another machine.
std::unique_ptr<text::Tokenizer> open_run_tokenizer(const config::Config& config);

/// The run's config, changed for passes of a few tokens over sequences of up to `length` tokens.
config::Config run_decoder_config(config::Config config, int64_t length);

/// A context with its own CUDA stream and GEMM algorithms, without autotuning.
Context own_context(const Context& context);

}  // namespace te::apps
