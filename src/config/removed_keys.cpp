#include "config/removed_keys.h"

#include <algorithm>
#include <map>
#include <sstream>
#include <utility>
#include <vector>

#include "config/key_table.h"
#include "config/rope_scaling.h"
#include "config/text.h"
#include "core/error.h"
#include "core/strings.h"

namespace te::config {
namespace {

constexpr std::string_view kScaleFormat = "precision.fp8_scale_format",
                           kTensorwiseFormat = "precision.fp8_tensorwise_scale_format";

constexpr std::string_view kNccl = "NCCL is always used; leave it out",
                           kAlwaysOn = "it is always on; leave it out",
                           kRope =
                               "model.rope_scaling is a mapping as in Hugging Face's config.json, such as "
                               "{rope_type: llama3, factor: 8.0}; give it there",
                           kLogs = "loss.csv and metrics.jsonl are always written; leave it out",
                           kPrompts = "list the prompts in logging.generate_prompts",
                           kSampling =
                               "set logging.generate_temperature, or run te-generate with checkpoints",
                           kDataCheck = "set data.check, which holds for both checks",
                           kOutlier = "it is a hook of tests, TE_TEST_OUTLIER=STEP:LOG2 in the environment";

constexpr RemovedKey kRemoved[] = {
    {"model.rope_scaling_factor", kRope},
    {"model.rope_scaling_low_freq_factor", kRope},
    {"model.rope_scaling_high_freq_factor", kRope},
    {"model.rope_scaling_original_max_position_embeddings", kRope},
    {"model.rope_scaling_beta_fast", kRope},
    {"model.rope_scaling_beta_slow", kRope},
    {"model.rope_scaling_attention_factor", kRope},
    {"model.rope_scaling_truncate", kRope},
    {"model.embedding_dropout", "model.hidden_dropout is the embedding's dropout, too; leave it out",
     "=model.hidden_dropout"},
    {"precision.min_loss_scale", "the smallest loss scale is 1; leave it out", "1.0", "precision.dtype=fp16"},
    {"precision.loss_scale_window", "the loss scale grows after 2,000 finite steps; leave it out", "2000",
     "precision.dtype=fp16"},
    {"precision.hysteresis", "every overflow halves the loss scale; leave it out", "1",
     "precision.dtype=fp16"},
    {kTensorwiseFormat,
     "precision.fp8_scale_format holds for tensorwise, rowwise and blockwise; set it instead",
     "=precision.fp8_scale_format", "precision.fp8=hybrid|e4m3"},
    {"precision.fp8_calibration_passes", "two microbatches calibrate the scales; leave it out"},
    {"parallel.tensor_transport", "set parallel.transport, or leave it out"},
    {"parallel.data_transport", kNccl},
    {"parallel.pipeline_transport", kNccl},
    {"parallel.overlap_grad_reduce", kAlwaysOn},
    {"parallel.overlap_param_gather", kAlwaysOn},
    {"parallel.fp8_param_gather", kAlwaysOn},
    {"parallel.overlap_receive", "receives are posted when their pass is due, which is faster; leave it out"},
    {"training.device_index", "set CUDA_VISIBLE_DEVICES in the environment"},
    {"training.best_valid_set", "the first set of data.valid decides; list that set first"},
    {"training.early_stopping_min_delta", "any lower loss is an improvement; leave it out"},
    {"training.loss_spike_threshold",
     "a spike is 10 robust standard deviations above the median; leave it out, or set training.loss_spikes"},
    {"optimizer.offload_buffer_mib", "the buffers take at most 512 MiB; leave it out"},
    {"optimizer.muon_nesterov", "Muon always uses Nesterov momentum; leave it out", "true",
     "optimizer.name=muon"},
    {"optimizer.muon_ns_steps", "Muon runs 5 Newton-Schulz iterations; leave it out", "5",
     "optimizer.name=muon"},
    {"optimizer.muon_scale", "Muon's update scale is 0.2, with AdamW's learning rates; leave it out", "0.2",
     "optimizer.name=muon"},
    {"data.check_tokenizer", kDataCheck},
    {"data.check_fingerprint", kDataCheck},
    {"checkpoint.resume_fallback",
     "resume: auto uses the checkpoint before a damaged one; name a checkpoint in checkpoint.resume to stop"},
    {"logging.csv", kLogs},
    {"logging.jsonl", kLogs},
    {"logging.generate_prompt_file", kPrompts},
    {"logging.generate_top_k", kSampling},
    {"logging.generate_top_p", kSampling},
    {"guard.threshold",
     "the threshold is 6 robust standard deviations; leave it out, or set guard.tolerance"},
    {"guard.validate", "the guard compares training losses; leave it out"},
    {"guard.test_outlier_step", kOutlier},
    {"guard.test_outlier_log2", kOutlier},
};

const RemovedKey* find_removed(std::string_view path) {
  const auto* const found = std::find_if(std::begin(kRemoved), std::end(kRemoved),
                                         [&](const RemovedKey& key) { return key.path == path; });
  return found == std::end(kRemoved) ? nullptr : found;
}

/// A line of to_yaml: a section, or a key with its value.
struct Line {
  std::string text, path, value;  ///< path and value are empty for a section
};

std::vector<Line> lines_of(const std::string& yaml) {
  std::vector<Line> lines;
  std::istringstream stream(yaml);
  std::string section;
  for (std::string text; std::getline(stream, text);) {
    Line line{.text = text, .path = {}, .value = {}};
    const size_t colon = text.find(':');
    if (colon != std::string::npos && text[0] != ' ') {
      section = text.substr(0, colon);
    } else if (colon != std::string::npos && text.size() > colon + 2 && text.starts_with("  ")) {
      line.path = section + "." + text.substr(2, colon - 2);
      line.value = text.substr(colon + 2);
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

using Values = std::map<std::string, std::string, std::less<>>;

Values values_of(const std::vector<Line>& lines) {
  Values values;
  for (const Line& line : lines)
    if (!line.path.empty()) values.emplace(line.path, line.value);
  return values;
}

/// Whether the value is one of `values`, which are separated by |.
bool is_among(std::string_view value, std::string_view values) {
  const std::vector<std::string_view> all = split(values, '|');
  return std::ranges::find(all, value) != all.end();
}

std::string value_of(const Values& values, std::string_view path) {
  const auto found = values.find(path);
  return found == values.end() ? "" : found->second;
}

/// The scale format of an FP8 run that had one key for `tensorwise` and one for the other recipes.
std::string scale_format(const Values& values) {
  const bool own =
      value_of(values, "precision.fp8_recipe") == "tensorwise" && values.contains(kTensorwiseFormat);
  return value_of(values, own ? kTensorwiseFormat : kScaleFormat);
}

/// Whether it may have used two formats.
bool had_two_scale_formats(const Values& values) {
  return value_of(values, kTensorwiseFormat) != value_of(values, kScaleFormat) &&
         value_of(values, "precision.overrides") != "\"\"";
}

/// Whether the run computed what this version computes.
bool continues(const RemovedKey& key, const Values& values) {
  const std::string value = value_of(values, key.path);
  if (key.kept.empty() || value.empty()) return true;
  if (!key.only_if.empty()) {
    const size_t equals = key.only_if.find('=');
    if (!is_among(value_of(values, key.only_if.substr(0, equals)), key.only_if.substr(equals + 1)))
      return true;
  }
  if (key.path == kTensorwiseFormat) return !had_two_scale_formats(values);
  return is_among(value, key.kept[0] == '=' ? value_of(values, key.kept.substr(1)) : key.kept);
}

/// The mapping of a run that had one key per parameter of RoPE scaling.
std::string rope_mapping(const Values& values, std::string_view type) {
  RopeScalingKind kind{};
  from_string(type, kind);
  std::string text = fmt::format("{{rope_type: {}", type);
  for (const std::string_view name : rope_parameters(kind)) {
    if (const std::string value = value_of(values, fmt::format("model.rope_scaling_{}", name));
        !value.empty())
      text += fmt::format(", {}: {}", name, value);
  }
  return text + "}";
}

}  // namespace

std::span<const RemovedKey> removed_keys() {
  return kRemoved;
}

std::string unknown_key_message(std::string_view path) {
  if (const RemovedKey* removed = find_removed(path))
    return fmt::format("{} was removed: {}", key_name(path), removed->instead);
  return fmt::format("{} is unknown; {}", key_name(path), suggestion(path));
}

std::map<std::string, std::string, std::less<>> stored_values(const std::string& yaml) {
  return values_of(lines_of(yaml));
}

std::string upgrade_stored(const std::string& yaml) {
  const std::vector<Line> lines = lines_of(yaml);
  const Values values = values_of(lines);
  std::string text;
  for (const Line& line : lines) {
    if (find_removed(line.path)) continue;
    std::string value = line.value;
    if (line.path == "model.rope_scaling" && value[0] != '{' && value != "none")
      value = rope_mapping(values, value);
    if (line.path == kScaleFormat) value = scale_format(values);
    text +=
        (value == line.value ? line.text
                             : fmt::format("  {}: {}", line.path.substr(line.path.find('.') + 1), value)) +
        "\n";
  }
  return text;
}

void check_resumable(const std::string& yaml) {
  const Values values = stored_values(yaml);
  for (const RemovedKey& key : kRemoved) {
    if (!continues(key, values))
      user_error(
          "the checkpoint's run had {}: {}, which was removed: {}; start a new run with "
          "checkpoint.init_from, or resume with the version that wrote the checkpoint",
          key.path, value_of(values, key.path), key.instead);
  }
}

}  // namespace te::config
