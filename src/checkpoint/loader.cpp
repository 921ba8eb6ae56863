#include "checkpoint/loader.h"

#include <algorithm>
#include <exception>
#include <map>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "optim/muon.h"

namespace te::checkpoint {
namespace {

using parameters::Parameter;
using parameters::ParameterStore;

constexpr int64_t kStagingElements = 4 << 20;  // a multiple of the blocks of FP8 moments

class Loading {
 public:
  Loading(const Context& context, const WeightSource& source, const config::Config& config,
          const TrainingState& state)
      : context_(context),
        source_(source),
        config_(config),
        state_(state),
        staging_(context, static_cast<size_t>(kStagingElements) * sizeof(float)),
        rounded_(context, rounds(state) ? staging_.bytes() : 0) {}

  /// quantize_written() may communicate, so a rank that cannot read a parameter takes part to the end.
  template <class Loads>
  void parameters(Loads&& loads) {
    std::exception_ptr failure;
    const auto attempt = [&](const auto& work) {
      try {
        if (!failure) work();
      } catch (...) {
        failure = std::current_exception();
      }
    };
    int64_t dropped = 0, held = 0;
    for (const Parameter& parameter : state_.parameters->parameters()) {
      if (!loads(parameter)) continue;
      attempt([&] { read(parameter); });
      if (!parameter.dropped) continue;
      parameter.quantize_written(context_);
      ++dropped;
      attempt([&] { held += use_codes(parameter) ? 1 : 0; });
      state_.parameters->keep_codes(context_, parameter);
    }
    if (failure) std::rethrow_exception(failure);
    if (held > 0) log_info("{} of {} FP8 weights are held as {} stores them", held, dropped, source_.title());
  }

  void moments() {
    const ParameterStore& store = *state_.parameters;
    check_optimizer();
    for (const auto& [prefix, flat] :
         {std::pair{"exp_avg/", &state_.exp_avg}, std::pair{"exp_avg_sq/", &state_.exp_avg_sq}}) {
      flat->zero(context_);
      for (const Parameter& parameter : store.parameters()) {
        if (!parameter.trainable) continue;
        if (flat == &state_.exp_avg_sq && optim::has_one_moment(config_.optimizer.name, parameter)) continue;
        const std::string name = prefix + parameter.name;
        const TensorInfo stored = checked(name, parameter);
        for (const ParameterStore::ShardRange& range : store.shard_ranges(parameter))
          fill(name, stored, parameter, range, flat->part(range.shard, range.count));
      }
    }
  }

  bool fp8(const Reader& reader);

 private:
  static bool rounds(const TrainingState& state) {
    const auto& parameters = state.parameters->parameters();
    const bool has_16_bits =
        !state.parameters->fp32() &&
        std::ranges::any_of(parameters, [](const Parameter& parameter) { return !parameter.trainable; });
    return has_16_bits || state.parameters->split() || state.exp_avg.values.dtype != DType::f32 ||
           state.exp_avg_sq.values.dtype != DType::f32;
  }
  [[noreturn]] void refuse_scales(const std::string& why, const std::string& remedy) const {
    user_error("{}: {}; {}", source_.title(), why, remedy);
  }

  /// Muon has one moment per matrix, AdamW two: the checkpoint's tensors tell which optimizer wrote it.
  void check_optimizer() const {
    for (const Parameter& parameter : state_.parameters->parameters()) {
      if (parameter.matrices.empty() || !parameter.trainable || !source_.info("exp_avg/" + parameter.name))
        continue;
      const auto name = source_.info("exp_avg_sq/" + parameter.name) ? config::OptimizerName::adamw
                                                                     : config::OptimizerName::muon;
      if (name == config_.optimizer.name) return;
      user_error(
          "{}: has the optimizer state of optimizer.name {}, but this config has {}; resume with that "
          "optimizer, or set checkpoint.load_optimizer to false to start with zero moments",
          source_.title(), config::to_string(name), config::to_string(config_.optimizer.name));
    }
  }

  void read(const Parameter& parameter) {
    ParameterStore& store = *state_.parameters;
    const TensorInfo stored = checked(parameter.name, parameter);
    if (stored.rows() < parameter.shard.global[0])
      store.initialize(context_, config_.training.seed, parameter);
    for (const ParameterStore::ShardRange& range : store.shard_ranges(parameter))
      fill(parameter.name, stored, parameter, range, store.main_of(parameter, range));
  }

  bool use_codes(const Parameter& parameter) {
    if (!context_.executes()) return false;
    const auto stored = source_.read_codes(parameter.name, parameter.shard);
    return stored && parameters::use_codes(context_, parameter, *stored);
  }

  TensorInfo checked(const std::string& name, const Parameter& parameter) const {
    return checked_info(source_, config_.model.vocab_size, name, parameter);
  }

  /// Loads the range's elements, except rows that the checkpoint does not have.
  void fill(const std::string& name, const TensorInfo& stored, const Parameter& parameter,
            const ParameterStore::ShardRange& range, const parameters::MainParams& target) {
    int64_t done = 0;
    for (const Block& block : blocks_of(parameter.shard, range.local, range.count)) {
      const int64_t there = available(stored, block);
      for (int64_t at = 0; at < there; at += kStagingElements) {
        const int64_t count = std::min(kStagingElements, there - at);
        source_.read(name, {block.col, block.width, block.first + at, count}, staging_.as<float>());
        target.part(done + at, count).write(context_, staging_.as<float>(), rounded_.as<void>());
      }
      done += block.count;
    }
  }
  /// Loads the range's moments, with zeros in rows that the checkpoint does not have. Works in ranges that begin at a
  /// block of FP8 moments, independent of rows.
  void fill(const std::string& name, const TensorInfo& stored, const Parameter& parameter,
            const ParameterStore::ShardRange& range, const optim::Moments& target) {
    float* values = staging_.as<float>();
    for (int64_t at = 0; at < range.count; at += kStagingElements) {
      const int64_t count = std::min(kStagingElements, range.count - at);
      read_shard(source_, name, stored, parameter.shard, range.local + at, count, values);
      target.part(at, count).write(context_, values, rounded_.as<void>());
    }
  }

  const Context& context_;
  const WeightSource& source_;
  const config::Config& config_;
  const TrainingState& state_;
  HostBuffer staging_;
  HostBuffer rounded_;  ///< 16-bit parts of master weights, or moments in a narrow format
};

// Rows are matched by name and role, so the checkpoint may have a different pipeline split. A run may resume with a
// different FP8 format (calibrated as hybrid, resumed as e4m3): scales are then converted by the ratio of the formats'
// largest numbers. Without saved scales the state gets its initial values, and the caller calibrates. A pipeline stage
// without histories has saved no rows, so operands that need none may lack theirs.
bool Loading::fp8(const Reader& reader) {
  const bool saved = reader.has_fp8();
  if (!has_fp8_state(state_)) return saved;
  const Fp8State stored = reader.fp8();
  const fp8::ScaleTable& table = *state_.scales;
  const int64_t length = table.history.dim(0), n = table.size();
  if (saved && stored.history_len != length) {
    refuse_scales(fmt::format("has amax histories of {} steps, but precision.amax_history_len is {}",
                              stored.history_len, length),
                  "resume with the length that it was saved with");
  }
  std::map<std::pair<std::string, std::string>, const Fp8State::Row*> rows;
  for (const Fp8State::Row& row : stored.rows) rows[{row.operand.name, row.operand.role}] = &row;
  std::vector<float> scale(static_cast<size_t>(n)), history(static_cast<size_t>(n * length));
  for (int64_t i = 0; i < n; ++i) {
    scale[i] = table.info(static_cast<int>(i)).initial_scale;
    if (!saved) continue;
    const Fp8Operand wanted = operand_of(table.info(static_cast<int>(i)));
    const auto found = rows.find({wanted.name, wanted.role});
    if (found == rows.end()) {
      if (!table.info(static_cast<int>(i)).has_history) continue;
      refuse_scales(
          fmt::format("has no scales of {}, which this config quantizes", wanted.name),
          "resume with the precision.first_layers_bf16, last_layers_bf16, fp8_output_layer and overrides "
          "that it was saved with");
    }
    const Fp8State::Row& row = *found->second;
    if (row.measured()) scale[i] = row.scale * (wanted.fp8_max / row.operand.fp8_max);
    for (int64_t at = 0; at < length; ++at) history[at * n + i] = row.history[at];
  }
  context_.copy_to_device(table.scale, scale.data());
  context_.copy_to_device(table.history, history.data());
  context_.copy_to_device(table.position, &stored.position);
  context_.synchronize();
  return saved;
}

}  // namespace

void load_weights(const Context& context, const WeightSource& source, const config::Config& config,
                  const TrainingState& state) {
  check_same_model(source, config);
  if (state.wait_offload) state.wait_offload();
  Loading(context, source, config, state).parameters([](const Parameter& parameter) {
    return !is_adapter(parameter.id.part);
  });
  state.exp_avg.zero(context);
  state.exp_avg_sq.zero(context);
}

void load_adapter(const Context& context, const WeightSource& source, const config::Config& config,
                  const TrainingState& state) {
  if (state.wait_offload) state.wait_offload();
  Loading(context, source, config, state).parameters([&](const Parameter& parameter) {
    return is_adapter(parameter.id.part) || source.info(parameter.name);
  });
}

Loaded load(const Context& context, const Reader& reader, const config::Config& config,
            const TrainingState& state, const LoadOptions& options) {
  check_same_model(reader, config);
  check_same_adapter(reader, config);
  if (state.wait_offload) state.wait_offload();
  Loading loading(context, reader, config, state);
  loading.parameters([&](const Parameter& parameter) { return state.parameters->saves(parameter); });
  Loaded loaded{.progress = reader.progress(), .optimizer = options.optimizer && reader.has_optimizer()};
  if (loaded.optimizer) {
    loading.moments();
  } else {
    state.exp_avg.zero(context);
    state.exp_avg_sq.zero(context);
    loaded.progress.updates = 0;
  }
  if (options.fp8) loaded.scales = loading.fp8(reader);
  return loaded;
}

}  // namespace te::checkpoint
