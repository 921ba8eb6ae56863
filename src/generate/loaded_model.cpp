#include "generate/loaded_model.h"

#include "core/error.h"
#include "core/memory_plan.h"
#include "parallel/launch.h"

namespace te::generate {
namespace {

config::Config config_of(parallel::World& world, const ModelSource& source, const RunOptions& options,
                         const Context& context, int64_t length) {
  config::Config config;
  // Times the tensor-parallel ranks for the rules of sequence parallelism.
  const int64_t sequences = kDecoderSequences * options.tensor;
  world.run_collectively([&] { config = run_config(source, options, context, length, sequences); });
  return config;
}

}  // namespace

MegakernelMode megakernel_mode_of(const RunOptions& options) {
  if (options.megakernel == "auto") return MegakernelMode::where_faster;
  if (options.megakernel == "on") return MegakernelMode::always;
  if (options.megakernel != "off") user_error("--megakernel {}: must be auto, on or off", options.megakernel);
  return MegakernelMode::never;
}

LoadedModel::LoadedModel(parallel::World& world, const ModelSource& source, const RunOptions& options,
                         int64_t length, const ChooseSizes& sizes)
    : context(parallel::open_device(world, options.device, {.gemm_autotune = GemmAutotune::off})),
      config(config_of(world, source, options, context, length)),
      groups(connect(world, context, options)),
      decoder(config, groups, sizes(context.is_cuda(), config)) {
  MemoryPlan plan;
  decoder.plan(plan, context);
  memory_ = plan.allocate(context);
  decoder.bind(context);
  world.run_collectively([&] { load_weights(context, source, decoder.parameters()); });
  decoder.quantize_weights(context);
  if (const std::string note = output_layer_note(source, config, OutputLayerUse::logits);
      !note.empty() && world.leader())
    fmt::print(stderr, "note: {}\n", note);
}

}  // namespace te::generate
