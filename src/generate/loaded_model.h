// A model with its weights on a device, ready to be given tokens.
#pragma once

#include "config/config.h"
#include "core/device.h"
#include "generate/decoder.h"
#include "generate/model_source.h"
#include "generate/run_config.h"
#include "parallel/groups.h"
#include "parallel/world.h"

namespace te::generate {

struct LoadedModel {
  /// Opens the device, connects the ranks and loads, for `batch` sequences of up to `length` tokens. Collective. UserError
  /// (JobFailure) when options, job and model do not go together, or a file is damaged.
  LoadedModel(parallel::World& world, const ModelSource& source, const RunOptions& options, int64_t length,
              int64_t batch);
  LoadedModel(const LoadedModel&) = delete;

  Context context;
  config::Config config;
  parallel::Groups groups;
  Decoder decoder;

 private:
  DeviceBuffer memory_;
};

}  // namespace te::generate
