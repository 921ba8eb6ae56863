// A model with its weights on a device, ready to run.
#pragma once

#include <functional>

#include "config/config.h"
#include "core/device.h"
#include "generate/decoder.h"
#include "generate/model_source.h"
#include "generate/run_config.h"
#include "parallel/groups.h"
#include "parallel/world.h"

namespace te::generate {

/// The mode by RunOptions::megakernel. UserError for an unknown value.
MegakernelMode megakernel_mode_of(const RunOptions& options);

struct LoadedModel {
  /// Opens the device, connects the ranks and loads the weights, for sequences of up to `length` tokens; `sizes`
  /// chooses the decoder's sizes. Collective. UserError (JobFailure) if options, job and model do not match, or a file
  /// is damaged. Prints output_layer_note() to stderr.
  using ChooseSizes = std::function<DecoderSizes(bool cuda, const config::Config& config)>;
  LoadedModel(parallel::World& world, const ModelSource& source, const RunOptions& options, int64_t length,
              const ChooseSizes& sizes);
  /// The same for `batch` sequences.
  LoadedModel(parallel::World& world, const ModelSource& source, const RunOptions& options, int64_t length,
              int64_t batch)
      : LoadedModel(world, source, options, length, [&](bool, const config::Config&) {
          return DecoderSizes{.batch = batch, .megakernel = megakernel_mode_of(options)};
        }) {}
  LoadedModel(const LoadedModel&) = delete;

  Context context;
  config::Config config;
  parallel::Groups groups;
  Decoder decoder;

 private:
  DeviceBuffer memory_;
};

}  // namespace te::generate
