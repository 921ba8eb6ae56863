#include "train/checkpoint_inspection.h"

#include <set>
#include <utility>

#include "checkpoint/kept_files.h"
#include "checkpoint/loader.h"
#include "core/error.h"
#include "kernels/tensor_stats/tensor_stats.h"
#include "train/batches.h"
#include "train/data_check.h"
#include "train/memory_check.h"
#include "train/startup.h"
#include "train/step_runner.h"

namespace te::train {
namespace {

/// Removes what only a training run, or several ranks, need. Adam moments are never read, so they get the smallest
/// dtype.
void leave_out(config::Config& config) {
  config.parallel = {};
  config.training.eval_interval = config.training.early_stopping_patience = 0;
  config.training.global_batch_size = config.training.micro_batch_size;
  config.optimizer.name = config::OptimizerName::adamw;
  config.optimizer.offload = config::Offload::none;
  config.optimizer.exp_avg_dtype = config.optimizer.exp_avg_sq_dtype = config::MomentDType::fp8;
  config.precision.fp8_calibrate = false;
  config.data.valid.clear();
  config.checkpoint.keep_best = 0;
  config.logging.loss_by_source = false;
  config.logging.generate_every = config.evaluation.every = 0;
  config.guard.every = 0;
}

/// Opens the data. Errors name the option that sets, or could set, the dataset.
Batches open_batches(const config::Config& config, const checkpoint::Reader& reader,
                     const InspectionOptions& options) {
  try {
    Batches batches(BatchOptions{.data = config.data,
                                 .seq_length = config.model.seq_length,
                                 .vocab_size = config.model.vocab_size,
                                 .seed = config.training.seed,
                                 .micro_batch_size = config.training.micro_batch_size});
    check_data(config.data, config.model.vocab_size, checkpoint::find_kept_folder(reader.folder()));
    return batches;
  } catch (const UserError& error) {
    const std::string message = error.what(), key = "data.train";
    if (options.data.empty()) user_error("{}; use --data PREFIX to select another dataset", message);
    if (message.starts_with(key)) user_error("--data{}", message.substr(key.size()));
    throw;
  }
}

/// Whether the checkpoint has the scales of all operands that the model quantizes with a history.
bool has_scales(const checkpoint::Reader& reader, const fp8::ScaleTable& table) {
  const checkpoint::Fp8State state = reader.fp8();
  if (state.rows.empty() || state.history_len != table.history.dim(0)) return false;
  std::set<std::pair<std::string, std::string>> there;
  for (const checkpoint::Fp8State::Row& row : state.rows) there.insert({row.operand.name, row.operand.role});
  for (int i = 0; i < table.size(); ++i) {
    const fp8::OperandInfo& info = table.info(i);
    if (info.has_history && !there.contains({info.linear.name(), fp8::role_name(info.role)})) return false;
  }
  return true;
}

/// Adds the statistics of a pass. The operands of every pass are the same, in the same order.
void add(Fp8Statistics& sum, Fp8Statistics part) {
  if (sum.operands.empty()) {
    sum = std::move(part);
    return;
  }
  TE_CHECK(sum.operands.size() == part.operands.size(), "{} operands in one pass, {} in another",
           sum.operands.size(), part.operands.size());
  for (size_t i = 0; i < sum.operands.size(); ++i)
    sum.operands[i].sums = kernels::merged(sum.operands[i].sums, part.operands[i].sums);
}

}  // namespace

InspectionSetup inspection_setup(const checkpoint::Reader& reader, const InspectionOptions& options) {
  config::Config config = reader.run_config(options.overrides);
  const int64_t microbatches = config.training.global_batch_size / config.training.micro_batch_size;
  if (reader.manifest().base)
    user_error("{}: is an adapter without its base; run te-convert merge and inspect the result",
               reader.folder().string());
  leave_out(config);
  if (!options.data.empty()) {
    config.data.train = {{1.0, options.data}};
    config.data.synthetic = false;
  }
  if (config.data.synthetic)
    user_error("--data PREFIX is required: the config of {} names no dataset", reader.folder().string());
  config.logging.fp8_statistics_every = 1;
  config.logging.fp8_what_if = options.recipes;
  config::resolve_defaults(config);
  const config::ComputeDType run_dtype = config.precision.dtype;
  // FP16 runs do not quantize to FP8.
  if (config.precision.dtype == config::ComputeDType::fp16)
    config.precision.dtype = config::ComputeDType::bf16;
  config::validate(config);
  if (config.precision.fp8 == config::Fp8Mode::off) {  // what may be advised must be valid
    config::Config quantized = config;
    quantized.precision.fp8 = config::Fp8Mode::hybrid;
    config::validate(quantized);
  }
  return {std::move(config), run_dtype, microbatches};
}

Inspection inspect_checkpoint(const Context& context, const checkpoint::Reader& reader,
                              const InspectionSetup& setup, const InspectionOptions& options) {
  const config::Config& config = setup.config;
  const Batches batches = open_batches(config, reader, options);
  StepRunner runner(config, context);
  const std::string shortage = memory_shortage(runner.plan(), config, context, 1, free_memory(context, 1));
  if (!shortage.empty()) user_error("{}", shortage);
  runner.allocate();
  // 1. Weights, and scales if the recipe takes them from past steps.
  Inspection result;
  const fp8::Recipe& recipe = runner.model().recipe();
  const bool from_history = recipe.needs_calibration();
  const bool loads = from_history && has_scales(reader, recipe.table());
  checkpoint::load(context, reader, config, runner.training_state(), {.optimizer = false, .fp8 = loads});
  runner.publish_weights();
  HostBatch batch = runner.make_host_batch();
  const int64_t samples = config.training.micro_batch_size;
  const auto read = [&](int64_t microbatch) {
    // Gradients are divided by the tokens of a whole step, which affects their scales.
    batch.counted = batches.read(microbatch * samples, samples, batch) * setup.microbatches_of_step;
  };
  if (from_history && !loads) {
    read(0);
    calibrate(runner, batches, samples, kCalibrationPasses, 0, batch.counted);
    result.calibrated = true;
  }
  // 2. Passes.
  for (int64_t i = 0; i < options.microbatches; ++i) {
    read(i);
    add(result.statistics, runner.observe(batch, i * samples));
    result.tokens += samples * config.model.seq_length;
  }
  return result;
}

}  // namespace te::train
