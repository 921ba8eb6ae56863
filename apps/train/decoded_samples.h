// Samples during training (logging.generate_*): the decoder of te-generate on the weights of te-train (run_decoder.h).
#pragma once

#include <memory>

#include "config/config.h"
#include "core/device.h"
#include "parallel/groups.h"
#include "train/samples.h"

namespace te::apps {

/// Null without logging.generate_every. `groups` must outlive it. UserError if a prompt cannot be used, or the
/// tokenizer does not match the model.
std::unique_ptr<train::SampleMaker> make_sample_maker(const config::Config& config, const Context& context,
                                                      const parallel::Groups& groups);

/// For a memory plan only: without the tokenizer on this machine, its KV cache is for sequences of the context length.
std::unique_ptr<train::SampleMaker> plan_sample_maker(const config::Config& config, const Context& context,
                                                      const parallel::Groups& groups);

}  // namespace te::apps
