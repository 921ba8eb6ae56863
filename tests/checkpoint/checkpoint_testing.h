// Fake ranks of any layout in one process, without communication. Each has the parameters, moments and FP8 state of its
// position in the job, filled with values that identify name and global index.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/writer.h"
#include "core/error.h"
#include "core/float_types.h"
#include "core/random.h"
#include "parameters/parameter_store.h"
#include "testing/temporary_folder.h"

namespace te::testing {

/// A folder in memory, for tests that rewrite files thousands of times.
inline std::filesystem::path memory_folder() {
  return ::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : std::filesystem::temp_directory_path();
}

inline std::string read_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_bytes(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << bytes;
  ASSERT_TRUE(file.good()) << path;
}

/// Names of the entries of a folder, sorted.
inline std::vector<std::string> entries(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

/// The message of the UserError that `body` must throw; the message must be one line.
template <class Body>
std::string refusal(Body&& body) {
  try {
    body();
  } catch (const UserError& error) {
    const std::string text = error.what();
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    return text;
  }
  ADD_FAILURE() << "no UserError was thrown";
  return "";
}

#define TE_EXPECT_REFUSED(part, ...)                                                               \
  do {                                                                                             \
    const std::string refused_text = ::te::testing::refusal([&] { __VA_ARGS__; });                 \
    EXPECT_NE(refused_text.find(part), std::string::npos) << refused_text << "\nlacks " << (part); \
  } while (false)

/// Value of a tensor of the fake model at a global index: a function that distinguishes names and indices.
inline float value_at(const std::string& name, int64_t index) {
  const Philox4 random = philox(7, stream_of(name), static_cast<uint64_t>(index));
  return static_cast<float>(random.word[0] >> 8) * 0x1p-24f - 0.5f;
}

struct Layout {
  int tensor = 1, data = 1, pipeline = 1;
  int64_t bucket_size = 1;
  int64_t vocab_rows = 40;  ///< the padded vocabulary
  DType dtype = DType::bf16;
  bool fp8 = true;
  int layers = 4;
  DType exp_avg = DType::f32, exp_avg_sq = DType::f32;
  int ranks() const { return tensor * data * pipeline; }
};

constexpr int64_t kVocab = 37, kHidden = 12, kFfn = 20;

inline config::Config fake_config(const Layout& layout = {}) {
  config::Config config;
  config.name = "fake";
  config.model.num_layers = layout.layers;
  config.model.hidden_size = kHidden;
  config.model.ffn_hidden_size = kFfn;
  config.model.num_attention_heads = 4;
  config.model.vocab_size = kVocab;
  config.model.seq_length = 8;
  config.model.make_vocab_size_divisible_by = layout.vocab_rows;
  config.training.micro_batch_size = config.training.global_batch_size = 1;
  config.training.train_steps = 1;
  config.data.synthetic = true;
  config::resolve_defaults(config);
  return config;
}

/// One rank. Embeddings are tied: with several pipeline stages the last one has a copy.
class FakeRank {
 public:
  FakeRank(const Layout& layout, int rank) : layout_(layout), rank_(rank) {
    const int tensor = rank % layout.tensor, data = rank / layout.tensor % layout.data,
              stage = rank / layout.tensor / layout.data;
    tensor_ = tensor;
    const int per_stage = layout.layers / layout.pipeline;
    if (stage == 0) embedding(false);
    for (int layer = stage * per_stage; layer < (stage + 1) * per_stage; ++layer) {
      const std::string name = "layers." + std::to_string(layer);
      add({.name = name + ".norm.weight",
           .shard = parameters::ParameterShard::full({kHidden}),
           .init = parameters::Init::ones,
           .sharing = parameters::Sharing::partial});
      // Row blocks: three of different heights here, two in fc1.
      add({.name = name + ".qkv.weight",
           .shard = parameters::ParameterShard::of_rows({kHidden + 8, kHidden}, {kHidden, 4, 4}, tensor,
                                                        layout.tensor)});
      add({.name = name + ".qkv.bias",
           .shard =
               parameters::ParameterShard::of_rows({kHidden + 8}, {kHidden, 4, 4}, tensor, layout.tensor)});
      add({.name = name + ".fc1.weight",
           .shard = parameters::ParameterShard::of_rows({2 * kFfn, kHidden}, {kFfn, kFfn}, tensor,
                                                        layout.tensor)});
      add({.name = name + ".fc2.weight",
           .shard = parameters::ParameterShard::of_columns({kHidden, kFfn}, tensor, layout.tensor)});
      add({.name = name + ".fc2.bias",
           .shard = parameters::ParameterShard::full({kHidden}),
           .sharing = parameters::Sharing::replicated});
      store_.end_layer();
      for (const auto role :
           {fp8::OperandRole::input, fp8::OperandRole::weight, fp8::OperandRole::grad_output})
        if (layout.fp8) table_.add({.linear = {layer, LinearKind::fc1}, .role = role});
    }
    if (stage == layout.pipeline - 1 && stage > 0) embedding(true);
    store_.plan(plan_, {.dtype = layout.dtype,
                        .ranks = {{{data, layout.data}}},
                        .tensor_rank = tensor,
                        .bucket_size = layout.bucket_size});
    optim::Moments::plan(plan_, exp_avg_, "exp_avg", layout.exp_avg, store_.shard_size());
    optim::Moments::plan(plan_, exp_avg_sq_, "exp_avg_sq", layout.exp_avg_sq, store_.shard_size());
    table_.plan(plan_, kHistory, false);
    memory_ = plan_.allocate(context_);
    store_.bind(context_);
    table_.reset(context_);
    poison();
  }

  checkpoint::TrainingState state() {
    return {.parameters = &store_, .exp_avg = exp_avg_, .exp_avg_sq = exp_avg_sq_, .scales = &table_};
  }
  const Context& context() const { return context_; }
  parameters::ParameterStore& store() { return store_; }
  checkpoint::Job job() const { return {.who = {rank_, layout_.ranks()}, .timeout_seconds = 20}; }

  /// Calls visit(name of the logical tensor, global index, element) for all elements of this rank's shards.
  template <class Visit>
  void for_each(Visit&& visit) {
    for (const parameters::Parameter& parameter : store_.parameters()) {
      // Global indices of the local elements.
      std::vector<int64_t> indices;
      for (const parameters::ParameterShard::Rows& range : parameter.shard.rows)
        for (int64_t row = range.first; row < range.first + range.count; ++row)
          for (int64_t col = 0; col < parameter.shard.cols; ++col)
            indices.push_back(row * parameter.shard.global_cols() + parameter.shard.first_col + col);
      for (const parameters::ParameterStore::ShardRange& range : store_.shard_ranges(parameter)) {
        float* main = store_.main_of(parameter, range).fp32.as<float>();
        for (int64_t i = 0; i < range.count; ++i) {
          const int64_t index = indices[range.local + i];
          visit(parameter.name, index, main[i]);
          visit_moment(visit, "exp_avg/" + parameter.name, index, exp_avg_.values, range.shard + i);
          visit_moment(visit, "exp_avg_sq/" + parameter.name, index, exp_avg_sq_.values, range.shard + i);
        }
      }
    }
  }
  void fill() {
    for_each([](const std::string& name, int64_t index, float& element) { element = value_at(name, index); });
    for (int i = 0; i < table_.size(); ++i) {
      const std::string name = table_.info(i).linear.name() + fp8::role_name(table_.info(i).role);
      table_.scale.as<float>()[i] = 1.0f + value_at(name, 0);
      for (int64_t at = 0; at < kHistory; ++at)
        table_.history.as<float>()[at * table_.size() + i] = value_at(name, 1 + at);
    }
    if (table_.size() > 0) *table_.position.as<int32_t>() = 2;
  }
  void poison() {
    for_each([](const std::string&, int64_t, float& element) { element = std::nanf(""); });
    context_.fill_bytes(exp_avg_.values, 0xff);
    context_.fill_bytes(exp_avg_sq_.values, 0xff);
  }
  /// Expects the values that fill() sets.
  void expect_filled() {
    int64_t wrong = 0, seen = 0;
    for_each([&](const std::string& name, int64_t index, float& element) {
      ++seen;
      if (is_padding(name, index)) return;
      wrong += element !=
               (name.starts_with("exp_avg") ? of_moment(name, value_at(name, index)) : value_at(name, index));
    });
    EXPECT_GT(seen, 0);
    EXPECT_EQ(wrong, 0) << "rank " << rank_ << ", of " << seen;
    for (int i = 0; i < table_.size(); ++i) {
      const std::string name = table_.info(i).linear.name() + fp8::role_name(table_.info(i).role);
      EXPECT_EQ(table_.scale.as<float>()[i], 1.0f + value_at(name, 0)) << name;
      for (int64_t at = 0; at < kHistory; ++at)
        EXPECT_EQ(table_.history.as<float>()[at * table_.size() + i], value_at(name, 1 + at)) << name << at;
    }
    if (table_.size() > 0) {
      EXPECT_EQ(*table_.position.as<int32_t>(), 2);
    }
  }
  static bool is_padding(const std::string& name, int64_t index) {
    return name.ends_with("word_embeddings.weight") && index >= kVocab * kHidden;
  }
  static constexpr int kHistory = 3;
  /// expect_filled() then expects moments rounded to BF16: another rank had them in BF16 in the meantime.
  void expect_rounded_moments() { rounded_ = true; }

 private:
  template <class Visit>
  static void visit_moment(Visit&& visit, const std::string& name, int64_t index, const Tensor& moments,
                           int64_t i) {
    if (moments.dtype == DType::f32) return visit(name, index, moments.as<float>()[i]);
    if (moments.dtype != DType::bf16) return;  // FP8 blocks are not filled element by element
    float value = to_float(moments.as<bfloat16>()[i]);
    visit(name, index, value);
    moments.as<bfloat16>()[i] = to_bf16(value);
  }
  float of_moment(const std::string& name, float value) const {
    const DType dtype = name.starts_with("exp_avg/") ? layout_.exp_avg : layout_.exp_avg_sq;
    return rounded_ || dtype == DType::bf16 ? to_float(to_bf16(value)) : value;
  }
  void add(parameters::ParameterSpec spec) {
    spec.std = 0.5f;
    store_.add(std::move(spec));
  }
  void embedding(bool copy) {
    add({.id = {ParameterRole::word_embeddings},
         .shard = parameters::ParameterShard::of_rows({layout_.vocab_rows, kHidden}, {layout_.vocab_rows},
                                                      tensor_, layout_.tensor),
         .copy = copy});
  }

  Context context_ = Context::cpu();
  Layout layout_;
  bool rounded_ = false;
  int rank_ = 0, tensor_ = 0;
  parameters::ParameterStore store_;
  fp8::ScaleTable table_;
  MemoryPlan plan_;
  DeviceBuffer memory_;
  Planned<optim::Moments> exp_avg_, exp_avg_sq_;
};

/// All ranks of a layout.
inline std::vector<std::unique_ptr<FakeRank>> fake_ranks(const Layout& layout, bool filled) {
  std::vector<std::unique_ptr<FakeRank>> ranks;
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    ranks.push_back(std::make_unique<FakeRank>(layout, rank));
    if (filled) ranks.back()->fill();
  }
  return ranks;
}

inline checkpoint::SaverOptions fake_options(const std::filesystem::path& directory,
                                             const Layout& layout = {}) {
  return {.directory = directory, .config = config::to_yaml(fake_config(layout))};
}

/// Saves from all ranks concurrently; returns the step folder.
inline std::filesystem::path save_all(std::vector<std::unique_ptr<FakeRank>>& ranks,
                                      const checkpoint::SaverOptions& options,
                                      const checkpoint::Progress& progress = {5, 50, 4},
                                      const std::filesystem::path& good = {}) {
  std::vector<std::unique_ptr<checkpoint::Saver>> savers;
  for (auto& rank : ranks)
    savers.push_back(
        std::make_unique<checkpoint::Saver>(rank->context(), options, rank->state(), rank->job()));
  for (auto& saver : savers) saver->save(progress, good);
  for (auto& saver : savers) EXPECT_TRUE(saver->finish().has_value());
  return savers[0]->folder_of(progress.step);
}

}  // namespace te::testing
