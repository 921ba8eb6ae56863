// The texts that a run makes of its prompts (logging.generate_*): the decoder of te-generate on the weights of
// te-train (run_decoder.h).
#pragma once

#include <memory>

#include "config/config.h"
#include "core/device.h"
#include "parallel/groups.h"
#include "train/samples.h"

namespace te::apps {

/// Null without logging.generate_every. Groups must outlive it. UserError when a prompt cannot be used, or the
/// tokenizer is not the model's.
std::unique_ptr<train::SampleMaker> make_sample_maker(const config::Config& config, const Context& context,
                                                      const parallel::Groups& groups);

}  // namespace te::apps
