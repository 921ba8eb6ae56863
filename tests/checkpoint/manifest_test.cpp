// Damaged manifests and shards are refused or read correctly, never with a crash (CI uses sanitizers). Also tests
// Reader and Writer as tools use them.
#include "checkpoint/manifest.h"

#include <array>

#include "checkpoint/shard_file.h"
#include "checkpoint_testing.h"

namespace te {
namespace {

using checkpoint::Manifest;
using checkpoint::Reader;
using checkpoint::Verify;
using checkpoint::Writer;
using testing::read_bytes;
using testing::TemporaryFolder;
using testing::write_bytes;

/// Appends the checksum to a manifest's body.
std::string with_checksum(const std::string& body) {
  return body + fmt::format("  \"manifest_checksum\": \"{:016x}\"\n}}\n",
                            checkpoint::checksum(body.data(), body.size()));
}

/// Reads all tensors of the manifest and the FP8 state.
void read_everything(const Reader& reader) {
  for (const checkpoint::LogicalTensor& tensor : reader.tensors()) {
    if (tensor.numel() > 100000) continue;  // a damaged manifest may have shapes that need too much memory
    std::vector<std::byte> bytes(tensor.bytes());
    reader.read_rows(tensor.name, 0, tensor.rows(), bytes.data());
  }
  reader.fp8();
}

/// A checkpoint with every feature: two ranks of tensor parallelism, moments, FP8 state.
class Damage : public ::testing::Test {
 protected:
  Damage() {
    auto ranks = testing::fake_ranks(layout_, true);
    step_ = testing::save_all(ranks, {.directory = folder_.path(), .config = kConfig});
    text_ = read_bytes(step_ / "manifest.json");
  }
  static constexpr const char* kConfig =
      "model:\n  num_layers: 1\n  hidden_size: 12\n  vocab_size: 37\n  tie_word_embeddings: false\n";
  testing::Layout layout_{.tensor = 2, .layers = 1};
  TemporaryFolder folder_;
  std::filesystem::path step_;
  std::string text_;
};

TEST_F(Damage, ManifestRoundTripsThroughText) {
  const Manifest manifest = checkpoint::parse_manifest("m", text_);
  EXPECT_EQ(checkpoint::to_text(manifest), text_);
  EXPECT_EQ(manifest.progress, (checkpoint::Progress{5, 50, 4}));
  EXPECT_EQ(manifest.config, kConfig);
  EXPECT_EQ(manifest.files.size(), 5u);
}

TEST_F(Damage, StateOfAllPoliciesRoundTrips) {
  Manifest manifest = checkpoint::parse_manifest("m", text_);
  checkpoint::Progress& progress = manifest.progress;
  progress.validation = {.set = "books", .lowest = 2.5, .without_gain = 1, .best = {{4, 2.5, true}}};
  progress.guard = {
      .gaps = {0.25, -1e-3}, .began = 4, .bf16 = {3.0, 0.1}, .fp8 = {3.5}, .bf16_until = 9, .excesses = 2};
  progress.loss_scale = {.scale = 12345.5, .good_steps = 7};
  progress.spikes = {.accepted = {3.3, 0.1, 1e-300}, .row = {9.0}, .total = 5, .since = 3};
  progress.faults = {.consecutive_skipped = 1, .skipped_total = 2, .rollbacks = 3};
  progress.checkpoints = {.last_verified = "step_00000004", .drop = {2, 3}};
  const std::string text = checkpoint::to_text(manifest);
  EXPECT_EQ(checkpoint::parse_manifest("m", text).progress, progress);
  for (const auto& [from, to, expected] :
       {std::array{"\"step_00000004\"", "\"../other\"", "must be the name of a checkpoint"},
        {"\"rollbacks\":3", "\"rollbacks\":-3", "must be a whole number"},
        {"\"row\":[9.0]", "\"row\":[null]", "must be a number"},
        {"\"drop\":[2,3]", "\"drop\":[2,-3]", "must be a whole number"}}) {
    std::string damaged = text.substr(0, text.rfind("  \"manifest_checksum\""));
    ASSERT_NE(damaged.find(from), std::string::npos) << from;
    damaged.replace(damaged.find(from), std::string(from).size(), to);
    TE_EXPECT_REFUSED(expected, checkpoint::parse_manifest("m", with_checksum(damaged)));
  }
}

TEST_F(Damage, LossScaleRoundTrips) {
  Manifest manifest = checkpoint::parse_manifest("m", text_);
  manifest.progress.loss_scale = {.scale = 12345.5, .good_steps = 7};
  const std::string text = checkpoint::to_text(manifest);
  EXPECT_EQ(checkpoint::parse_manifest("m", text).progress, manifest.progress);
  for (const auto& [from, to, expected] :
       {std::array{"12345.5", "-1.0", "must be above 0"},
        {"12345.5", "\"a\"", "must be a number"},
        {"\"good_steps\":7", "\"good_steps\":-7", "must be a whole number"}}) {
    std::string damaged = text.substr(0, text.rfind("  \"manifest_checksum\""));
    damaged.replace(damaged.find(from), std::string(from).size(), to);
    TE_EXPECT_REFUSED(expected, checkpoint::parse_manifest("m", with_checksum(damaged)));
  }
}

TEST_F(Damage, DatasetsRoundTrip) {
  Manifest manifest = checkpoint::parse_manifest("m", text_);
  EXPECT_TRUE(manifest.datasets.empty());
  manifest.datasets = {{"data.train", "a/\"b", 3, 40, 0xfedcba9876543210u}, {"data.valid: c", "d", 0, 0, 1}};
  const std::string text = checkpoint::to_text(manifest);
  EXPECT_EQ(checkpoint::parse_manifest("m", text).datasets, manifest.datasets);
  EXPECT_EQ(checkpoint::merge({manifest}).datasets, manifest.datasets);
  for (const auto& [from, to, expected] :
       {std::array{"fedcba9876543210", "fedcba987654321", "must be a checksum"},
        {"\"tokens\":40", "\"tokens\":-1", "must be a whole number"},
        {"\"key\":\"data.train\"", "\"key\":1", "must be text"}}) {
    std::string damaged = text.substr(0, text.rfind("  \"manifest_checksum\""));
    damaged.replace(damaged.find(from), std::string(from).size(), to);
    TE_EXPECT_REFUSED(expected, checkpoint::parse_manifest("m", with_checksum(damaged)));
  }
}

TEST_F(Damage, RefusesEveryViolatedRuleOfTheManifest) {
  const auto refuse = [&](const std::string& from, const std::string& to, const std::string& expected) {
    const size_t at = text_.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    std::string damaged = text_.substr(0, text_.rfind("  \"manifest_checksum\""));
    damaged.replace(at, from.size(), to);
    TE_EXPECT_REFUSED(expected, checkpoint::parse_manifest("m", with_checksum(damaged)));
  };
  refuse("checkpoint 2", "checkpoint 1", "version");
  refuse("\"step\": 5", "\"step\": -5", "\"step\" must be a whole number");
  refuse("\"step\": 5", "\"step\": 5.5", "\"step\" must be a whole number");
  refuse("\"step\": 5", "\"stop\": 5", "\"step\" is missing");
  refuse("\"files\": [", "\"files\": 1, \"f\": [", "\"files\" must be a list");
  refuse("\"model-00001", "\"../odel-00001", "must be the name of a file");
  refuse("\"shape\":[40,12]", "\"shape\":[44,12]", "leave a gap");
  refuse("\"shape\":[40,12]", "\"shape\":[40,4611686018427387904]", "whole number from 0");
  refuse("\"shape\":[40,12]", "\"shape\":[72057594037927936,12]", "too many elements");
  refuse("\"dtype\":\"F32\"", "\"dtype\":\"F99\"", "dtype");
  refuse("\"rows\":[0,20]", "\"rows\":[0,21]", "overlap");
  refuse("\"rows\":[0,20]", "\"rows\":[0,41]", "whole number from 0 to 40");
  refuse("\"rows\":[0,20]", "\"cols\":[0,0]", "no columns");
  refuse("\"rows\":[0,20]", "\"elements\":[-1,240]", "whole number");
  refuse("\"rows\":[0,20]", "\"elements\":[1]", "two numbers");
  refuse("\"file\":0", "\"file\":7", "whole number from 0 to 4");
  refuse("embedding.word_embeddings.weight\",\"dtype", "exp_avg/embedding.word_embeddings.weight\",\"dtype",
         "twice");
}

// --- shards ------------------------------------------------------------------------------------------------

TEST_F(Damage, RefusesATruncatedMissingOrForeignShard) {
  const auto path = step_ / "model-00001-of-00002.safetensors";
  const std::string good = read_bytes(path);
  for (size_t length = 0; length < good.size(); length += 511) {
    write_bytes(path, good.substr(0, length));
    TE_EXPECT_REFUSED(path.string(), Reader(step_).verify_all());
  }
  write_bytes(path, good + "more");
  TE_EXPECT_REFUSED(path.string(), Reader(step_).verify_all());
  write_bytes(path, read_bytes(step_ / "optimizer-00001-of-00002.safetensors"));
  TE_EXPECT_REFUSED("does not match the manifest", Reader(step_).verify_all());
  std::filesystem::remove(path);
  TE_EXPECT_REFUSED("model-00001-of-00002.safetensors: shard is missing", Reader(step_).verify_all());
  write_bytes(path, good);
  std::filesystem::remove(step_ / "optimizer-00001-of-00002.safetensors");
  TE_EXPECT_REFUSED("checkpoint.load_optimizer", Reader(step_).verify_all());
}

// Without verification checksums are not compared; sizes and names are.
TEST_F(Damage, VerificationIsOptional) {
  const auto path = step_ / "model-00001-of-00002.safetensors";
  std::string bytes = read_bytes(path);
  bytes[bytes.size() - 3] ^= 0x10;
  write_bytes(path, bytes);
  EXPECT_NO_THROW(read_everything(Reader(step_, Verify::off)));
  TE_EXPECT_REFUSED("checksum", read_everything(Reader(step_, Verify::on)));
  const Reader reader(step_, Verify::off);
  TE_EXPECT_REFUSED("checksum", reader.verify_all());
}

TEST_F(Damage, NamesTheFirstModelKeyThatDiffers) {
  testing::FakeRank rank({.layers = 1}, 0);
  const Reader reader(step_);
  const auto refuse = [&](auto&& change, const char* expected) {
    config::Config config = testing::fake_config(layout_);
    change(config.model);
    TE_EXPECT_REFUSED(expected, checkpoint::load(rank.context(), reader, config, rank.state()));
  };
  refuse([](auto& m) { m.num_layers = 5, m.hidden_size = 16; },
         "model.num_layers is 1, but this config has 5");
  refuse([](auto& m) { m.hidden_size = 16; }, "model.hidden_size");
  refuse([](auto& m) { m.vocab_size = 36; }, "model.vocab_size is 37, but this config has 36");
  refuse([](auto& m) { m.tie_word_embeddings = true; },
         "model.tie_word_embeddings is false, but this config has true");
  config::Config config = testing::fake_config(layout_);
  config.model.rope_theta = 5e5;  // only a warning
  config.model.seq_length = 16;
  EXPECT_NO_THROW(checkpoint::load(rank.context(), reader, config, rank.state()));
  rank.expect_filled();
}

// --- every byte --------------------------------------------------------------------------------------------

/// A minimal checkpoint with every feature of the format: slices of columns, rows and elements in two files, a moment,
/// FP8 state.
class EveryByte : public ::testing::Test {
 protected:
  EveryByte() {
    Manifest manifest;
    manifest.progress = {5, 50, 4};
    manifest.config = "model:\n  num_layers: 1\n";
    checkpoint::Validation& validation = manifest.progress.validation;
    validation.set = "books";
    validation.lowest = 2.5;
    validation.without_gain = 1;
    validation.best.push_back({4, 2.5, true});
    validation.best.push_back({2, 2.75, false});
    checkpoint::ShardFile first(folder_.path(), "a", {{"w", DType::f32, {12}}});
    checkpoint::ShardFile second(folder_.path(), "b",
                                 {{"w", DType::f32, {12}}, {"exp_avg/w", DType::f32, {24}}});
    first.write("w", values_, 48);
    second.write("w", values_ + 12, 48);
    second.write("exp_avg/w", values_, 96);
    manifest.files.push_back(first.finish());
    manifest.files.push_back(second.finish());
    manifest.tensors = {
        {"w",
         DType::f32,
         {4, 6},
         {{0, 0, {0, 3, 0, 12}}, {1, 0, {3, 3, 0, 6}}, {1, 6, {3, 3, 6, 2}}, {1, 8, {3, 3, 8, 4}}}},
        {"exp_avg/w", DType::f32, {4, 6}, {{1, 0, {0, 6, 0, 24}}}}};
    const checkpoint::Fp8State fp8{
        .history_len = 2, .position = 1, .rows = {{{"fc1", "input", 448.0f}, 2.0f, {0.5f, 0.25f}}}};
    manifest.fp8.push_back(checkpoint::write_fp8(folder_.path(), "c", fp8, manifest.files));
    text_ = checkpoint::to_text(manifest);
    body_ = text_.rfind("  \"manifest_checksum\"");
    write_bytes(folder_ / "manifest.json", text_);
  }
  /// Replacements of a byte: a neighboring value, characters with a meaning in JSON, and a non-ASCII byte.
  static std::vector<char> others(char byte) {
    std::vector<char> values = {static_cast<char>(byte ^ 1), '"', '9', '-', static_cast<char>(byte ^ 0x80)};
    std::erase(values, byte);
    return values;
  }

  TemporaryFolder folder_{testing::memory_folder()};
  float values_[24] = {1, 2, 3, 4, 5, 6, 7, 8};
  std::string text_;
  size_t body_ = 0;  ///< number of bytes that the manifest's checksum covers
};

TEST_F(EveryByte, UndamagedCheckpointIsRead) {
  const Reader reader(folder_.path());
  reader.verify_all();
  std::vector<float> w(24);
  reader.read_rows("w", 0, 4, w.data());
  EXPECT_EQ(w, (std::vector<float>{1, 2, 3, 0, 0, 0, 4, 5, 6, 0, 0, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}));
  reader.read_rows("exp_avg/w", 0, 4, w.data());
  EXPECT_EQ(w, std::vector<float>(values_, values_ + 24));
  EXPECT_EQ(reader.fp8().rows.at(0).history, (std::vector<float>{0.5f, 0.25f}));
}

TEST_F(EveryByte, ManifestChanged) {
  for (size_t at = 0; at < text_.size(); ++at) {
    std::string damaged = text_;
    for (const char value : others(text_[at])) {
      damaged[at] = value;
      testing::refusal([&] { checkpoint::parse_manifest("m", damaged); });
    }
  }
}

TEST_F(EveryByte, ManifestTruncated) {
  for (size_t length = 0; length < text_.size(); ++length)
    testing::refusal([&] { checkpoint::parse_manifest("m", text_.substr(0, length)); });
}

// With a corrected checksum the other checks of the manifest and of the shards must detect the change or accept it.
TEST_F(EveryByte, ManifestChangedWithCorrectedChecksum) {
  int64_t accepted = 0, refused = 0;
  for (size_t at = 0; at < body_; ++at) {
    for (const char value : others(text_[at])) {
      std::string damaged = text_.substr(0, body_);
      damaged[at] = value;
      damaged = with_checksum(damaged);
      try {
        checkpoint::parse_manifest("m", damaged);
        ++accepted;  // a changed name, checksum or config
        write_bytes(folder_ / "manifest.json", damaged);
        read_everything(Reader(folder_.path(), Verify::on));
      } catch (const UserError& error) {
        ++refused;
        EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
      }
    }
  }
  EXPECT_GT(accepted, 500);
  EXPECT_GT(refused, 2000);
}

TEST_F(EveryByte, ShardChanged) {
  for (const char* shard : {"a", "b", "c"}) {
    const std::string good = read_bytes(folder_ / shard);
    std::fstream file(folder_ / shard, std::ios::binary | std::ios::in | std::ios::out);
    const auto put = [&](size_t at, int value) {
      file.seekp(static_cast<std::streamoff>(at)).put(static_cast<char>(value)).flush();
    };
    for (size_t at = 0; at < good.size(); ++at) {
      put(at, good[at] ^ 0x10);
      const std::string message = testing::refusal([&] { Reader(folder_.path()).verify_all(); });
      EXPECT_EQ(message.find((folder_ / shard).string() + ": "), 0u) << at << ": " << message;
      put(at, good[at]);
    }
    EXPECT_NO_THROW(Reader(folder_.path()).verify_all());
  }
}

TEST_F(EveryByte, ShardTruncated) {
  for (const char* shard : {"a", "b", "c"}) {
    const std::string good = read_bytes(folder_ / shard);
    for (size_t length = good.size(); length-- > 0;) {
      std::filesystem::resize_file(folder_ / shard, length);
      const std::string message = testing::refusal([&] { Reader(folder_.path()).verify_all(); });
      EXPECT_EQ(message.find((folder_ / shard).string() + ": "), 0u) << length << ": " << message;
    }
    write_bytes(folder_ / shard, good);
    EXPECT_NO_THROW(Reader(folder_.path()).verify_all());
  }
}

// --- tools -------------------------------------------------------------------------------------------------

TEST(ReaderAndWriter, FullTensorsInParts) {
  TemporaryFolder folder;
  const std::vector<checkpoint::TensorSpec> specs = {{"b", DType::bf16, {3, 5}},
                                                     {"a", DType::f32, {1200, 1000}},
                                                     {"scalar", DType::f32, {}},
                                                     {"exp_avg/a", DType::f32, {1200, 1000}},
                                                     {"cube", DType::f32, {2, 3, 4}}};
  std::vector<float> big(1200 * 1000);
  for (size_t i = 0; i < big.size(); ++i) big[i] = static_cast<float>(i);
  const std::vector<uint16_t> halves = {0x3f80, 0xbf80, 0x4000, 0, 0x8000, 0x7f7f, 1,     2,
                                        3,      4,      5,      6, 7,      8,      0x4049};
  {
    Writer writer(folder.path(), {7, 70, 6}, "name: x\n", specs);
    const char* bytes = reinterpret_cast<const char*>(big.data());
    for (size_t at = 0; at < big.size() * 4;
         at += 1000003) {  // interleaved, in parts that are not aligned to blocks
      const size_t count = std::min<size_t>(1000003, big.size() * 4 - at);
      writer.write("a", bytes + at, count);
      writer.write("exp_avg/a", bytes + at, count);
    }
    writer.write("b", halves.data(), 30);
    writer.write("scalar", big.data() + 42, 4);
    writer.write("cube", big.data(), 96);
    EXPECT_EQ(testing::entries(folder.path()), std::vector<std::string>{"step_00000007.tmp"});
    EXPECT_EQ(writer.finish(), folder / "step_00000007");
  }
  EXPECT_EQ(testing::entries(folder.path()), (std::vector<std::string>{"latest", "step_00000007"}));
  EXPECT_EQ(testing::entries(folder / "step_00000007"),
            (std::vector<std::string>{"manifest.json", "model.safetensors", "optimizer.safetensors"}));
  const Reader reader(folder.path());
  EXPECT_EQ(reader.folder(), folder / "step_00000007");
  EXPECT_EQ(reader.config(), "name: x\n");
  EXPECT_EQ(reader.progress(), (checkpoint::Progress{7, 70, 6}));
  EXPECT_TRUE(reader.has_optimizer());
  EXPECT_TRUE(reader.fp8().rows.empty());
  ASSERT_EQ(reader.tensors().size(), 5u);
  EXPECT_EQ(reader.tensors()[0].name, "b");
  // A slice that is the full tensor has only its file in the manifest.
  EXPECT_NE(read_bytes(reader.folder() / "manifest.json")
                .find(R"({"name":"a","dtype":"F32","shape":[1200,1000],"slices":[{"file":0}]})"),
            std::string::npos);
  std::vector<float> part(101 * 1000);
  for (const int64_t first : {0, 1, 1048, 1099}) {
    for (const char* name : {"a", "exp_avg/a"}) {
      reader.read_rows(name, first, 101, part.data());
      for (size_t i = 0; i < part.size(); ++i) ASSERT_EQ(part[i], big[first * 1000 + i]);
    }
  }
  std::vector<float> widened(10);
  reader.read_rows("b", 0, 2, widened.data());
  EXPECT_EQ(widened[0], 1.0f);
  EXPECT_EQ(widened[1], -1.0f);
  EXPECT_EQ(widened[2], 2.0f);
  EXPECT_TRUE(std::signbit(widened[4]));
  EXPECT_EQ(widened[5], 0x1.fep127f);  // the largest finite BF16 number
  reader.read_rows("b", 2, 1, widened.data());
  EXPECT_EQ(widened[4], 3.140625f);
  std::vector<std::byte> raw(30);
  reader.read_rows("b", 0, 3, raw.data());
  EXPECT_EQ(std::memcmp(raw.data(), halves.data(), 30), 0);
  float scalar = 0;
  reader.read_rows("scalar", 0, 1, &scalar);
  EXPECT_EQ(scalar, 42.0f);
  std::vector<float> cube(12);
  reader.read_rows("cube", 1, 1, cube.data());
  EXPECT_EQ(cube[0], 12.0f);
  TE_EXPECT_REFUSED("tensor \"c\" is missing", reader.read_rows("c", 0, 1, &scalar));
  EXPECT_THROW(reader.read_rows("a", 1200, 1, part.data()), InternalError);
  reader.verify_all();
}

TEST(ReaderAndWriter, UnfinishedWriterLeavesNoFiles) {
  TemporaryFolder folder;
  {
    Writer writer(folder.path(), {}, "", {{"a", DType::f32, {4}}});
    EXPECT_THROW(writer.write("b", nullptr, 0), InternalError);
    EXPECT_THROW(writer.finish(), InternalError);  // "a" is not complete
  }
  EXPECT_TRUE(testing::entries(folder.path()).empty());
  TE_EXPECT_REFUSED("manifest.json: not found", Reader(folder.path()));
  TE_EXPECT_REFUSED("checkpoint.directory", Writer("/proc/nowhere", {}, "", {{"a", DType::f32, {4}}}));
}

}  // namespace
}  // namespace te
