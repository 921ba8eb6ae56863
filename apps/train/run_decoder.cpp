#include "train/run_decoder.h"

#include <filesystem>
#include <string>

#include "checkpoint/kept_files.h"
#include "model/pipeline_chunks.h"
#include "train/kept_tokenizer.h"

namespace te::apps {

std::unique_ptr<text::Tokenizer> open_run_tokenizer(const config::Config& config) {
  std::string spec = config.data.tokenizer;
  if (spec != "bytes" && checkpoint::tokenizer_files(spec).empty()) {
    const std::filesystem::path kept = train::kept_by_resumed(config.checkpoint);
    if (!kept.empty()) spec = kept.string();
  }
  return text::make_tokenizer(spec);
}

config::Config run_decoder_config(config::Config config, int64_t length) {
  config.parallel.pipeline_split = model::pipeline_split_text(config);  // as in the run
  config.model.seq_length = length;
  config.precision.fp8 = config::Fp8Mode::off;
  config.precision.fp8_calibrate = false;
  config.parallel.sequence = false;
  config.parallel.tensor_overlap = 1;
  config.parallel.transport = config::Transport::nccl;  // a few tokens
  config.training.micro_batch_size = config.training.global_batch_size = 1;
  config.training.recompute = config::Recompute::full;  // one set of activations for all layers
  return config;
}

Context own_context(const Context& context) {
  ExecutionOptions options = context.options();
  if (!context.is_cuda()) return Context::cpu(options);
  options.gemm_autotune = GemmAutotune::off;
  return Context::cuda(context.ordinal(), options);
}

}  // namespace te::apps
