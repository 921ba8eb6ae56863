// The runs of scripts/make_peft_fixtures.py in te-train.
#pragma once

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/loader.h"
#include "checkpoint/safetensors.h"
#include "convert/adapter.h"
#include "convert/foreign_model.h"
#include "core/json.h"
#include "training_run.h"

namespace te::testing {

namespace fs = std::filesystem;

inline const fs::path kFixtures = fs::path(TE_SOURCE_DIR) / "tests/fixtures";

template <class T>
std::vector<T> stored_values(const SafetensorsReader& file, const char* name) {
  const SafetensorsTensor& tensor = file.at(name);
  std::vector<T> values(tensor.bytes / sizeof(T));
  std::memcpy(values.data(), tensor.data, tensor.bytes);
  return values;
}

/// A fixture's folder, its base, and the adapter that te-train loads or compares with.
struct PeftFixture {
  fs::path folder = kFixtures / "peft", base = kFixtures / "hugging_face/llama";
  const char* adapter = "trained";
};
inline const PeftFixture kPeft{},
    kPeftExperts{kFixtures / "peft_experts", kFixtures / "hugging_face/mixtral"};

/// The config of the fixture's run, for an adapter of `adapter`.
inline config::Config peft_config(const PeftFixture& fixture, const SafetensorsReader& expected,
                                  const config::AdapterConfig& adapter) {
  const convert::ForeignModel base = convert::open_hugging_face(fixture.base);
  config::Config config = config::parse_config(base.config(), "base.yaml");
  const nlohmann::json optimizer = parse_json(expected.metadata().at("optimizer"));
  config.optimizer.lr = config.optimizer.min_lr = optimizer.at("lr").get<double>();
  config.optimizer.decay = config::LrDecay::constant;
  config.optimizer.beta1 = optimizer.at("beta1").get<double>();
  config.optimizer.beta2 = optimizer.at("beta2").get<double>();
  config.optimizer.eps = optimizer.at("eps").get<double>();
  config.optimizer.weight_decay = optimizer.at("weight_decay").get<double>();
  config.optimizer.clip_grad = optimizer.at("clip_grad").get<double>();
  const std::vector<int64_t>& shape = expected.at("tokens").shape;
  config.training.micro_batch_size = config.training.global_batch_size = shape[1];
  config.training.train_steps = shape[0];
  config.model.seq_length = shape[2];
  config.precision.dtype = config::ComputeDType::fp32;
  config.training.device = config::DeviceChoice::cpu;
  config.data.synthetic = true;
  config.adapter = adapter;
  config.checkpoint.init_from = fixture.base.string();
  config.model.moe_aux_loss_coeff = 0;  // not part of PEFT's loss
  config::validate(config);
  return config;
}

inline void load_base_and_adapter(TrainingRun& run, const fs::path& adapter) {
  const convert::ForeignModel base = convert::open_hugging_face(run.config().checkpoint.init_from);
  checkpoint::load_weights(run.context(), base, run.config(), run.runner().training_state());
  checkpoint::load_adapter(run.context(), *convert::open_adapter(adapter, run.config().model).weights,
                           run.config(), run.runner().training_state());
  run.runner().publish_weights();
}

/// The fixture's run in te-train, with `dtype`.
struct PeftRun {
  explicit PeftRun(config::ComputeDType dtype, const PeftFixture& of = kPeft)
      : fixture(of), config([&] {
          config::Config peft = peft_config(of, expected, trained.config);
          peft.precision.dtype = dtype;
          return peft;
        }()) {}
  /// A step of the fixture, from 0. Returns the mean loss.
  float step(size_t index) {
    const auto tokens = stored_values<int32_t>(expected, "tokens"),
               targets = stored_values<int32_t>(expected, "targets");
    train::HostBatch batch = run.runner().make_host_batch();
    const size_t count = batch.tokens.bytes() / sizeof(int32_t);
    batch.counted = static_cast<int64_t>(count);
    std::copy_n(tokens.data() + index * count, count, batch.tokens.as<int32_t>());
    std::copy_n(targets.data() + index * count, count, batch.targets.as<int32_t>());
    return run.step(batch, static_cast<int>(index) + 1) / static_cast<float>(count);
  }
  /// The losses of PEFT's steps from the same base, adapter and data.
  std::vector<float> train() {
    load_base_and_adapter(run, fixture.folder / "initial");
    std::vector<float> losses;
    for (size_t index = 0; index < static_cast<size_t>(config.training.train_steps); ++index)
      losses.push_back(step(index));
    return losses;
  }
  const PeftFixture fixture;
  const SafetensorsReader expected{(fixture.folder / "expected.safetensors").string()};
  const convert::ForeignModel base = convert::open_hugging_face(fixture.base);
  const convert::Adapter trained = convert::open_adapter(fixture.folder / fixture.adapter, base.model());
  config::Config config;
  TrainingRun run{config};
};

}  // namespace te::testing
