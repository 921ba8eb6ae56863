// A checkpoint of any parallel layout can be loaded with any other: each rank gets exactly its elements.
#include "checkpoint_testing.h"

namespace te {
namespace {

using testing::fake_config;
using testing::fake_options;
using testing::fake_ranks;
using testing::FakeRank;
using testing::Layout;
using testing::save_all;
using testing::TemporaryFolder;

const std::vector<Layout> kLayouts = {
    {},
    {.tensor = 2},
    {.tensor = 4},
    {.data = 2},
    {.data = 3, .bucket_size = 1000},
    {.pipeline = 2},
    {.pipeline = 4},
    {.tensor = 2, .data = 2, .pipeline = 2},
    {.tensor = 4, .data = 2, .pipeline = 2, .bucket_size = 300},
    {.tensor = 2, .data = 3, .pipeline = 4, .bucket_size = 100000, .dtype = DType::f32},
    {.data = 2, .pipeline = 2, .dtype = DType::f32},
};

std::string name_of(const Layout& layout) {
  return fmt::format("tensor{}_data{}_pipeline{}_bucket{}_{}", layout.tensor, layout.data, layout.pipeline,
                     layout.bucket_size, dtype_name(layout.dtype));
}

void load_all(const std::filesystem::path& folder, const Layout& layout) {
  for (auto& rank : fake_ranks(layout, false)) {
    const checkpoint::Reader reader(folder);
    const checkpoint::Loaded loaded =
        checkpoint::load(rank->context(), reader, fake_config(layout), rank->state());
    EXPECT_TRUE(loaded.optimizer);
    EXPECT_EQ(loaded.progress, (checkpoint::Progress{5, 50, 4}));
    rank->expect_filled();
  }
}

class Layouts : public ::testing::TestWithParam<Layout> {};

TEST_P(Layouts, LoadWithEveryOtherLayout) {
  TemporaryFolder folder;
  auto ranks = fake_ranks(GetParam(), true);
  const auto saved = save_all(ranks, fake_options(folder.path()));
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(name_of(layout));
    load_all(saved, layout);
  }
  checkpoint::Reader(saved).verify_all();
  // No element is stored twice or missing: the files have as many bytes as the tensors.
  int64_t stored = 0, logical = 0;
  const checkpoint::Reader reader(saved);
  for (const checkpoint::StoredFile& file : reader.manifest().files) {
    if (file.name.starts_with("fp8")) continue;
    const SafetensorsReader shard(saved / file.name);
    for (const SafetensorsTensor& tensor : shard.tensors()) stored += static_cast<int64_t>(tensor.bytes);
  }
  for (const checkpoint::LogicalTensor& tensor : reader.tensors())
    logical += static_cast<int64_t>(tensor.bytes());
  EXPECT_EQ(stored, logical);
  EXPECT_EQ(reader.tensors().size(), 3u * (1 + 6 * Layout().layers));
}

INSTANTIATE_TEST_SUITE_P(Saved, Layouts, ::testing::ValuesIn(kLayouts),
                         [](const auto& info) { return name_of(info.param); });

TEST(Resharding, FullTensorReadsTheSameFromEveryLayout) {
  const std::string name = "layers.1.fc2.weight", moment = "exp_avg_sq/layers.2.qkv.weight";
  for (const Layout& layout : kLayouts) {
    TemporaryFolder folder;
    auto ranks = fake_ranks(layout, true);
    save_all(ranks, fake_options(folder.path()));
    const checkpoint::Reader reader(folder.path());  // the directory, so its latest checkpoint
    for (const std::string& tensor_name : {name, moment}) {
      const checkpoint::LogicalTensor& tensor = reader.at(tensor_name);
      for (const int64_t rows : {int64_t{1}, int64_t{5}, tensor.rows()}) {
        for (int64_t first = 0; first < tensor.rows(); first += rows) {
          const int64_t count = std::min(rows, tensor.rows() - first);
          std::vector<float> values(count * tensor.cols(), std::nanf(""));
          reader.read_rows(tensor_name, first, count, values.data());
          for (size_t i = 0; i < values.size(); ++i)
            ASSERT_EQ(values[i],
                      testing::value_at(tensor_name, first * tensor.cols() + static_cast<int64_t>(i)));
        }
      }
    }
  }
}

// Moments keep their dtype in the checkpoint. Loading converts them to the dtype of the state.
TEST(Resharding, MomentsMayBeBf16) {
  const DType formats[][2] = {
      {DType::f32, DType::f32}, {DType::bf16, DType::bf16}, {DType::bf16, DType::f32}};
  for (const auto& [exp_avg, exp_avg_sq] : formats) {
    TemporaryFolder folder;
    auto ranks = fake_ranks({.tensor = 2, .data = 3, .exp_avg = exp_avg, .exp_avg_sq = exp_avg_sq}, true);
    const auto saved = save_all(ranks, fake_options(folder.path()));
    const checkpoint::Reader reader(saved);
    EXPECT_EQ(reader.at("exp_avg/layers.0.fc2.bias").dtype, exp_avg);
    EXPECT_EQ(reader.at("exp_avg_sq/layers.0.fc2.bias").dtype, exp_avg_sq);
    EXPECT_EQ(reader.at("layers.0.fc2.bias").dtype, DType::f32);
    reader.verify_all();
    for (auto layout : {Layout{}, Layout{.tensor = 4, .pipeline = 2}, Layout{.data = 2, .pipeline = 2}}) {
      // With the saved dtypes, and with both moments in BF16.
      load_all(saved, (layout.exp_avg = exp_avg, layout.exp_avg_sq = exp_avg_sq, layout));
      load_all(saved, (layout.exp_avg = layout.exp_avg_sq = DType::bf16, layout));
      if (exp_avg_sq != DType::bf16) continue;
      layout.exp_avg = layout.exp_avg_sq = DType::f32;
      for (auto& rank : fake_ranks(layout, false)) {
        checkpoint::load(rank->context(), reader, fake_config(layout), rank->state());
        rank->expect_rounded_moments();
        rank->expect_filled();
      }
    }
  }
}

/// Compares all moments of two checkpoints relative to each tensor's largest value. FP8 stores square roots of second
/// moments.
void compare_moments(const std::filesystem::path& a, const std::filesystem::path& b, float tolerance) {
  const checkpoint::Reader left(a), right(b);
  for (const checkpoint::LogicalTensor& tensor : left.tensors()) {
    if (!tensor.is_moment()) continue;
    std::vector<float> x(static_cast<size_t>(tensor.numel())), y(x.size());
    left.read_rows(tensor.name, 0, tensor.rows(), x.data());
    right.read_rows(tensor.name, 0, tensor.rows(), y.data());
    float largest = 0, difference = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      largest = std::max(largest, std::abs(x[i]));
      difference = std::max(difference, std::abs(x[i] - y[i]));
    }
    EXPECT_GT(largest, 0) << tensor.name;
    EXPECT_LE(difference, tolerance * largest) << tensor.name;
  }
}

// The checkpoint has decoded values of FP8 moments. With a different number of data-parallel ranks or stages the blocks
// are the same, so the moments are bit-identical. Tensor parallelism changes the blocks, so values are rounded again.
TEST(Resharding, Fp8MomentsKeepTheirValues) {
  TemporaryFolder fp32, first, second, third, plain;
  const auto load_and_save = [](const std::filesystem::path& from, Layout layout, const TemporaryFolder& to,
                                bool fp8 = true) {
    if (fp8) layout.exp_avg = DType::e4m3, layout.exp_avg_sq = DType::u8;
    auto ranks = fake_ranks(layout, false);
    const checkpoint::Reader reader(from);
    for (auto& rank : ranks) checkpoint::load(rank->context(), reader, fake_config(layout), rank->state());
    return save_all(ranks, fake_options(to.path()));
  };
  auto ranks = fake_ranks({.tensor = 2}, true);
  for (auto& rank : ranks) {  // second moments are not negative
    rank->for_each([](const std::string& name, int64_t, float& element) {
      if (name.starts_with("exp_avg_sq/")) element *= element;
    });
  }
  const auto exact = save_all(ranks, fake_options(fp32.path()));
  const auto rounded = load_and_save(exact, {.data = 3, .bucket_size = 1000}, first);
  compare_moments(exact, rounded, 0.07f);
  EXPECT_EQ(checkpoint::Reader(rounded).at("exp_avg/layers.0.fc2.bias").dtype, DType::bf16);
  EXPECT_EQ(checkpoint::Reader(rounded).at("exp_avg_sq/layers.0.fc2.bias").dtype, DType::f32);
  compare_moments(rounded, load_and_save(rounded, {.data = 2, .pipeline = 4}, second), 0);
  compare_moments(rounded, load_and_save(rounded, {.tensor = 4, .data = 2}, third), 0.07f);
  compare_moments(rounded, load_and_save(rounded, {.tensor = 2, .pipeline = 2}, plain, false), 0);
}

// A vocabulary of 37 tokens, padded to 40 and 48, and without padding.
TEST(Resharding, PaddingOfTheVocabularyMayDiffer) {
  const std::string name = "embedding.word_embeddings.weight";
  for (const int64_t saved_rows : {int64_t{40}, int64_t{48}, testing::kVocab}) {
    TemporaryFolder folder;
    const int tensor = saved_rows == testing::kVocab ? 1 : 4;
    auto ranks = fake_ranks({.tensor = tensor, .vocab_rows = saved_rows}, true);
    const auto saved = save_all(ranks, fake_options(folder.path()));
    for (const Layout& layout :
         {Layout{.tensor = 2, .data = 2, .pipeline = 2, .vocab_rows = 48},
          Layout{.vocab_rows = testing::kVocab}, Layout{.tensor = 2, .vocab_rows = 40}}) {
      SCOPED_TRACE(fmt::format("{} rows saved, {} loaded", saved_rows, layout.vocab_rows));
      load_all(saved, layout);
      for (auto& rank : fake_ranks(layout, false)) {
        const checkpoint::Reader reader(saved);
        checkpoint::load(rank->context(), reader, fake_config(layout), rank->state());
        FakeRank fresh(layout, rank->job().who.rank);
        fresh.store().initialize(fresh.context(), fake_config(layout).training.seed);
        std::vector<float> initial;
        fresh.for_each([&](const std::string&, int64_t, float& element) { initial.push_back(element); });
        size_t i = 0;
        rank->for_each([&](const std::string& tensor_name, int64_t index, float& element) {
          const float unseen = initial[i++];
          if (!FakeRank::is_padding(tensor_name, index)) return;
          if (index < saved_rows * testing::kHidden) {
            EXPECT_EQ(element, testing::value_at(tensor_name, index));
          } else {
            EXPECT_EQ(element, tensor_name == name ? unseen : 0.0f) << tensor_name << index;
          }
        });
      }
    }
  }
}

TEST(Resharding, MissingMomentsStartAtZero) {
  TemporaryFolder folder;
  const Layout layout{.tensor = 2, .data = 2};
  auto ranks = fake_ranks(layout, true);
  checkpoint::SaverOptions options = fake_options(folder.path());
  save_all(ranks, options, {3, 30, 3});
  options.optimizer = false;
  const auto saved = save_all(ranks, options);
  EXPECT_EQ(
      testing::entries(saved),
      (std::vector<std::string>{"fp8-00001-of-00004.safetensors", "manifest.json",
                                "model-00001-of-00004.safetensors", "model-00002-of-00004.safetensors",
                                "model-00003-of-00004.safetensors", "model-00004-of-00004.safetensors"}));
  const auto expect_zero_moments = [](const std::filesystem::path& from,
                                      const checkpoint::LoadOptions& load) {
    FakeRank rank({}, 0);
    const checkpoint::Reader reader(from);
    const checkpoint::Loaded loaded =
        checkpoint::load(rank.context(), reader, fake_config(), rank.state(), load);
    EXPECT_FALSE(loaded.optimizer);
    EXPECT_EQ(loaded.progress.updates, 0);
    EXPECT_EQ(loaded.progress.step, reader.progress().step);
    rank.for_each([](const std::string& name, int64_t index, float& element) {
      if (FakeRank::is_padding(name, index)) return;
      EXPECT_EQ(element, name.starts_with("exp_avg") ? 0.0f : testing::value_at(name, index));
    });
  };
  EXPECT_FALSE(checkpoint::Reader(saved).has_optimizer());
  expect_zero_moments(saved, {});
  // Moments that are not loaded may be deleted.
  std::filesystem::remove(folder / "step_00000003/optimizer-00001-of-00004.safetensors");
  expect_zero_moments(folder / "step_00000003", {.optimizer = false});
}

/// Writes a checkpoint with zeros in the shapes of the reader's tensors, and this FP8 state.
std::filesystem::path rewrite(const TemporaryFolder& folder, const checkpoint::Reader& reader,
                              const std::vector<checkpoint::TensorSpec>& specs,
                              const checkpoint::Fp8State& state) {
  checkpoint::Writer writer(folder / "other", reader.progress(), reader.config(), specs, state);
  for (const auto& tensor : reader.tensors()) {
    const std::vector<char> zeros(tensor.bytes());
    writer.write(tensor.name, zeros.data(), zeros.size());
  }
  return writer.finish();
}

TEST(Resharding, Fp8ScalesAreConvertedToAnotherFormat) {
  TemporaryFolder folder;
  auto ranks = fake_ranks({}, true);
  const auto saved = save_all(ranks, fake_options(folder.path()));
  checkpoint::Fp8State state = checkpoint::Reader(saved).fp8();
  ASSERT_EQ(state.rows.size(), 12u);
  for (auto& row : state.rows) row.operand.fp8_max = 57344.0f;  // as if saved in E5M2
  std::vector<checkpoint::TensorSpec> specs;
  const checkpoint::Reader reader(saved);
  for (const auto& tensor : reader.tensors()) specs.push_back({tensor.name, tensor.dtype, tensor.shape});
  checkpoint::Writer writer(folder / "other", reader.progress(), reader.config(), specs, state);
  for (const auto& tensor : reader.tensors()) {
    std::vector<std::byte> bytes(tensor.bytes());
    reader.read_rows(tensor.name, 0, tensor.rows(), bytes.data());
    writer.write(tensor.name, bytes.data(), bytes.size());
  }
  const auto other = writer.finish();
  FakeRank rank({}, 0);
  checkpoint::load(rank.context(), checkpoint::Reader(other), fake_config(), rank.state());
  const fp8::ScaleTable& table = *rank.state().scales;
  for (int i = 0; i < table.size(); ++i)
    EXPECT_EQ(table.scale.as<float>()[i], state.rows[i].scale * (448.0f / 57344.0f));
  // A history of a different length, or of different layers, is refused.
  checkpoint::Fp8State shorter = state;
  shorter.history_len = 1;
  shorter.position = 0;
  for (auto& row : shorter.rows) row.history.resize(1);
  checkpoint::Fp8State renamed = state;
  renamed.rows[4].operand.name = "layers.9.fc1";
  for (const auto& [broken, expected] : {std::pair{shorter, "precision.amax_history_len"},
                                         std::pair{renamed, "precision.first_layers_bf16"}}) {
    const checkpoint::Reader unfit(rewrite(folder, reader, specs, broken));
    TE_EXPECT_REFUSED(expected, checkpoint::load(rank.context(), unfit, fake_config(), rank.state()));
  }
  // Without saved scales the state gets its initial values, and the run calibrates.
  const checkpoint::Reader without(rewrite(folder, reader, specs, {}));
  config::Config config = fake_config();
  config.precision.fp8 = config::Fp8Mode::hybrid;
  EXPECT_FALSE(checkpoint::load(rank.context(), without, config, rank.state()).scales);
  for (int i = 0; i < table.size(); ++i) {
    EXPECT_EQ(table.scale.as<float>()[i], 1.0f);
    EXPECT_EQ(table.history.as<float>()[i], 0.0f);
  }
}

}  // namespace
}  // namespace te
