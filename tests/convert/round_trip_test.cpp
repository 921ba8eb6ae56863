// Hugging Face -> te-train -> Hugging Face gives the same tensors, byte for byte, and the logits of transformers.
#include <algorithm>
#include <numeric>

#include "convert/hugging_face_config.h"
#include "convert/logits_testing.h"
#include "core/json.h"
#include "core/stored_values.h"

namespace te::testing {
namespace {

class RoundTrip : public ::testing::TestWithParam<const char*> {
 protected:
  fs::path source() const { return fixture(GetParam()); }
  TemporaryFolder folder_;
};

TEST_P(RoundTrip, TensorsKeepTheirBytes) {
  import_to(source(), folder_ / "te");
  export_to(folder_ / "te", folder_ / "hf");
  const auto before = tensors_of(source()), after = tensors_of(folder_ / "hf");
  ASSERT_EQ(after.size(), before.size());
  for (const auto& [name, tensor] : before) {
    ASSERT_TRUE(after.contains(name)) << name;
    EXPECT_TRUE(after.at(name) == tensor) << name;
  }
  // A single file equals the one that transformers writes, including the header.
  if (fs::exists(source() / "model.safetensors")) {
    EXPECT_TRUE(read_bytes(folder_ / "hf/model.safetensors") == read_bytes(source() / "model.safetensors"));
  }
  EXPECT_EQ(
      config::to_yaml(
          convert::complete_config(convert::read_hugging_face_config(folder_ / "hf/config.json"))),
      config::to_yaml(convert::complete_config(convert::read_hugging_face_config(source() / "config.json"))));
}

TEST_P(RoundTrip, ShardsHoldTheSameTensors) {
  import_to(source(), folder_ / "te");
  const auto done =
      export_to(folder_ / "te", folder_ / "hf", {.dtype = {}, .max_shard_bytes = 12000, .kept = {}});
  EXPECT_GT(done.files, 2);
  EXPECT_TRUE(tensors_of(folder_ / "hf") == tensors_of(source()));
  const auto index = parse_json(read_bytes(folder_ / "hf/model.safetensors.index.json"));
  EXPECT_EQ(index.at("metadata").at("total_size"), done.bytes);
  EXPECT_EQ(index.at("weight_map").size(), done.tensors);
  import_to(folder_ / "hf", folder_ / "again");
  EXPECT_TRUE(read_bytes(folder_ / "again/step_00000000/model.safetensors") ==
              read_bytes(folder_ / "te/step_00000000/model.safetensors"));
}

TEST_P(RoundTrip, Bf16IsRoundedAndFp32RepresentsIt) {
  import_to(source(), folder_ / "te");
  export_to(folder_ / "te", folder_ / "bf16", {.dtype = DType::bf16, .max_shard_bytes = 1 << 30, .kept = {}});
  import_to(folder_ / "bf16", folder_ / "te_bf16");
  export_to(folder_ / "te_bf16", folder_ / "fp32",
            {.dtype = DType::f32, .max_shard_bytes = 1 << 30, .kept = {}});
  import_to(folder_ / "fp32", folder_ / "te_fp32");
  export_to(folder_ / "te_fp32", folder_ / "again",
            {.dtype = DType::bf16, .max_shard_bytes = 1 << 30, .kept = {}});
  EXPECT_TRUE(tensors_of(folder_ / "again") == tensors_of(folder_ / "bf16"));
  const checkpoint::Reader exact(folder_ / "te"), rounded(folder_ / "te_bf16");
  for (const checkpoint::LogicalTensor& tensor : exact.tensors()) {
    EXPECT_EQ(rounded.at(tensor.name).dtype, DType::bf16);
    std::vector<float> a(static_cast<size_t>(tensor.numel())), b(a.size());
    exact.read_rows(tensor.name, 0, tensor.rows(), a.data());
    rounded.read_rows(tensor.name, 0, tensor.rows(), b.data());
    for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(to_float(to_bf16(a[i])), b[i]) << tensor.name;
  }
}

/// KL(expected || actual) of each row of `vocab` logits.
std::vector<double> divergences(const std::vector<float>& actual, const std::vector<float>& expected,
                                size_t vocab) {
  const auto log_sum = [&](const float* row) {
    double sum = 0;
    for (size_t i = 0; i < vocab; ++i) sum += std::exp(double{row[i]});
    return std::log(sum);
  };
  std::vector<double> rows;
  for (size_t at = 0; at < expected.size(); at += vocab) {
    const double p = log_sum(&expected[at]), q = log_sum(&actual[at]);
    double row = 0;
    for (size_t i = at; i < at + vocab; ++i)
      row += std::exp(expected[i] - p) * ((expected[i] - p) - (actual[i] - q));
    rows.push_back(row);
  }
  EXPECT_FALSE(rows.empty());
  return rows;
}

double mean(const std::vector<double>& rows) {
  return std::accumulate(rows.begin(), rows.end(), 0.0) / static_cast<double>(rows.size());
}

double median(std::vector<double> rows) {
  const auto middle = rows.begin() + static_cast<std::ptrdiff_t>(rows.size() / 2);
  std::nth_element(rows.begin(), middle, rows.end());
  return *middle;
}

// FP32: te-train and transformers sum about forty terms in different orders, in two layers. Logits are up to 8, with a
// roundoff of 5e-7. BF16: activations with 8 significant bits change logits by about 1e-2; the divergence is
// proportional to the square of that. A token whose selected experts are nearly tied with others may select those in
// BF16, which changes its logits by as much as another expert does; the median is that of tokens that do not.
TEST_P(RoundTrip, LogitsEqualThoseOfTransformers) {
  const SafetensorsReader expected(source() / "expected.safetensors");
  const SafetensorsTensor& ids = expected.at("tokens");
  std::vector<int32_t> tokens(ids.bytes / sizeof(int32_t));
  std::memcpy(tokens.data(), ids.data, ids.bytes);
  const std::vector<float> wanted = floats_of(expected.at("logits"));
  import_to(source(), folder_ / "te");
  for (const fs::path& path : {source(), folder_ / "te"}) {
    const std::vector<float> logits = te_logits(path, "fp32", tokens, ids.shape[0]);
    ASSERT_EQ(logits.size(), wanted.size());
    double largest = 0;
    for (size_t i = 0; i < logits.size(); ++i)
      largest = std::max(largest, std::abs(double{logits[i]} - double{wanted[i]}));
    EXPECT_LT(largest, 1e-5) << path;
    EXPECT_LT(mean(divergences(logits, wanted, wanted.size() / tokens.size())), 1e-11) << path;
  }
  const std::vector<float> rounded = te_logits(folder_ / "te", "bf16", tokens, ids.shape[0]);
  const std::vector<double> rows = divergences(rounded, wanted, wanted.size() / tokens.size());
  const bool experts = convert::read_hugging_face_config(source() / "config.json").num_moe_experts > 0;
  EXPECT_LT(experts ? median(rows) : mean(rows), 2e-4);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, RoundTrip,
                         ::testing::Values("llama", "llama3_tied_bf16", "llama_biases_yarn", "qwen2", "qwen3",
                                           "mistral_window", "olmo2", "phi3_partial", "gpt_neox",
                                           "gpt_neox_sequential", "gpt2", "gpt2_untied_bf16", "gpt2_relu",
                                           "qwen3_windows", "gemma3", "gemma3_bf16", "mixtral", "qwen2_moe",
                                           "qwen3_moe", "olmoe", "nanochat"),
                         [](const auto& info) { return std::string(info.param); });

// transformers wrote the fixture in shards of 20 KB. With a limit of 8 KB, embedding and output layer each exceed the
// limit and get their own file immediately, before the file that was being filled.
TEST(Shards, EqualThoseOfTransformers) {
  TemporaryFolder folder;
  import_to(fixture("llama"), folder / "te");
  export_to(folder / "te", folder / "hf", {.dtype = {}, .max_shard_bytes = 20000, .kept = {}});
  int64_t files = 0;
  for (const auto& entry : fs::directory_iterator(fixture("llama"))) {
    const std::string name = entry.path().filename();
    if (!name.starts_with("model")) continue;
    EXPECT_TRUE(read_bytes(folder / "hf" / name) == read_bytes(entry.path())) << name;
    ++files;
  }
  EXPECT_EQ(files, 6);
  export_to(folder / "te", folder / "small", {.dtype = {}, .max_shard_bytes = 8000, .kept = {}});
  const auto index = parse_json(read_bytes(folder / "small/model.safetensors.index.json"));
  const auto file_of = [&](const char* tensor) -> std::string { return index.at("weight_map").at(tensor); };
  EXPECT_TRUE(file_of("model.embed_tokens.weight").starts_with("model-00001-"));
  EXPECT_LT(file_of("lm_head.weight"), file_of("model.norm.weight"));
}

// te-train stores no F16: it becomes FP32, which represents every F16 value.
TEST(Import, F16BecomesFp32) {
  const TemporaryFolder folder;
  import_to(fixture("llama_linear"), folder / "te");
  const checkpoint::Reader reader(folder / "te");
  const SafetensorsReader file(fixture("llama_linear") / "model.safetensors");
  const SafetensorsTensor& stored = file.at("model.layers.1.mlp.down_proj.weight");
  ASSERT_EQ(stored.file_dtype, "F16");
  const checkpoint::LogicalTensor& tensor = reader.at("layers.1.mlp.linear_fc2.weight");
  EXPECT_EQ(tensor.dtype, DType::f32);
  std::vector<float> values(static_cast<size_t>(tensor.numel()));
  reader.read_rows(tensor.name, 0, tensor.rows(), values.data());
  std::vector<std::byte> wide(values.size() * 4);
  std::memcpy(wide.data() + stored.bytes, stored.data, stored.bytes);
  widen_f16_in_place(wide.data(), tensor.numel());
  EXPECT_EQ(std::memcmp(values.data(), wide.data(), wide.size()), 0);
}

TEST(Import, OldKeysMeanTheSame) {
  const TemporaryFolder folder;
  const fs::path old = copy_fixture("llama3_tied_bf16", folder / "old");
  nlohmann::json config = parse_json(read_bytes(old / "config.json"));
  nlohmann::json rope = config.at("rope_parameters");
  config["rope_theta"] = rope.at("rope_theta");
  rope.erase("rope_theta");
  config["rope_scaling"] = rope;
  config["torch_dtype"] = config.at("dtype");
  config.erase("rope_parameters");
  config.erase("dtype");
  write_bytes(old / "config.json", config.dump());
  const config::ModelConfig a = convert::read_hugging_face_config(old / "config.json");
  const config::ModelConfig b =
      convert::read_hugging_face_config(fixture("llama3_tied_bf16") / "config.json");
  EXPECT_EQ(config::to_yaml(convert::complete_config(a)), config::to_yaml(convert::complete_config(b)));
  EXPECT_EQ(a.rope_scaling.kind, config::RopeScalingKind::llama3);
  EXPECT_EQ(a.rope_theta, 20000.0);
  EXPECT_EQ(a.rope_scaling.original_max_position_embeddings, 16);
}

// The files of gpt2 on the hub have no prefix and contain mask buffers.
TEST(Import, Gpt2WithoutPrefixAndWithMasks) {
  const TemporaryFolder folder;
  const fs::path plain = copy_fixture("gpt2", folder / "plain");
  const SafetensorsReader file(fixture("gpt2") / "model.safetensors");
  std::vector<SafetensorsSpec> specs{{"h.0.attn.bias", DType::u8, {1, 1, 4, 4}},
                                     {"h.0.attn.masked_bias", DType::f32, {}}};
  const auto name_of = [](const SafetensorsTensor& tensor) {
    return tensor.name.substr(std::string("transformer.").size());
  };
  for (const SafetensorsTensor& tensor : file.tensors())
    specs.push_back({name_of(tensor), *tensor.dtype, tensor.shape});
  SafetensorsWriter writer(plain / "model.safetensors", specs);
  const std::vector<uint8_t> zeros(16);
  writer.write("h.0.attn.bias", zeros.data(), 16);
  writer.write("h.0.attn.masked_bias", zeros.data(), 4);
  for (const SafetensorsTensor& tensor : file.tensors())
    writer.write(name_of(tensor), tensor.data, tensor.bytes);
  writer.finish();
  import_to(plain, folder / "te");
  import_to(fixture("gpt2"), folder / "reference");
  EXPECT_TRUE(read_bytes(folder / "te/step_00000000/model.safetensors") ==
              read_bytes(folder / "reference/step_00000000/model.safetensors"));
}

// Converts a Llama of transformers to llama2.c's format: rows i and i + head / 2 of a head become adjacent.
TEST(Import, Llama2cEqualsTheLlamaOfTransformers) {
  const TemporaryFolder folder;
  const fs::path llama = copy_fixture("llama", folder / "llama");
  const auto tensors = tensors_of(llama);
  const config::ModelConfig m = convert::read_hugging_face_config(llama / "config.json");
  // llama2.c has heads of dim / n_heads: keep the first rows of every head.
  const int64_t dim = m.hidden_size, head = dim / m.num_attention_heads, layers = m.num_layers;
  const auto values = [&](const std::string& name) {
    const std::string& text = tensors.at(name);
    std::vector<float> result(static_cast<size_t>((text.size() - text.find("] ") - 2) / 4));
    std::memcpy(result.data(), text.data() + text.find("] ") + 2, result.size() * 4);
    return result;
  };
  // [heads * kv_channels, width] -> [heads * head, width]; narrow_cols does the same to the columns of o_proj.
  const auto narrow_rows = [&](const std::vector<float>& in, int64_t heads) {
    std::vector<float> out;
    const int64_t width = static_cast<int64_t>(in.size()) / (heads * m.kv_channels);
    for (int64_t h = 0; h < heads; ++h)
      out.insert(out.end(), in.begin() + h * m.kv_channels * width,
                 in.begin() + (h * m.kv_channels + head) * width);
    return out;
  };
  const auto narrow_cols = [&](const std::vector<float>& in) {
    std::vector<float> out;
    for (auto at = in.begin(); at != in.end(); at += m.kv_channels) out.insert(out.end(), at, at + head);
    return out;
  };
  const auto interleave = [&](const std::vector<float>& in) {
    std::vector<float> out(in.size());
    for (int64_t row = 0; row * dim < static_cast<int64_t>(in.size()); ++row) {
      const int64_t within = row % head, pair = within % (head / 2), second = within / (head / 2);
      std::copy_n(in.begin() + row * dim, dim, out.begin() + (row - within + 2 * pair + second) * dim);
    }
    return out;
  };
  const std::vector<int32_t> header{36, 28, 2, 6, 2, -61, 48};
  std::string bytes(reinterpret_cast<const char*>(header.data()), 28);
  const auto put = [&](const std::vector<float>& v) {
    bytes.append(reinterpret_cast<const char*>(v.data()), v.size() * 4);
  };
  const auto each = [&](const std::string& name, const auto& change) {
    for (int64_t layer = 0; layer < layers; ++layer)
      put(change(values(fmt::format("model.layers.{}.{}.weight", layer, name))));
  };
  const auto same = [](std::vector<float> v) { return v; };
  put(values("model.embed_tokens.weight"));
  each("input_layernorm", same);
  each("self_attn.q_proj", [&](const auto& v) { return interleave(narrow_rows(v, m.num_attention_heads)); });
  each("self_attn.k_proj", [&](const auto& v) { return interleave(narrow_rows(v, m.num_query_groups)); });
  each("self_attn.v_proj", [&](const auto& v) { return narrow_rows(v, m.num_query_groups); });
  each("self_attn.o_proj", narrow_cols);
  each("post_attention_layernorm", same);
  each("mlp.gate_proj", same);
  each("mlp.down_proj", same);
  each("mlp.up_proj", same);
  put(values("model.norm.weight"));
  put(std::vector<float>(static_cast<size_t>(48 * head)));
  put(values("lm_head.weight"));
  write_bytes(folder / "model.bin", bytes);

  const convert::ForeignModel model = convert::open_llama2c(folder / "model.bin");
  EXPECT_EQ(model.model().kv_channels, head);
  EXPECT_EQ(model.model().tie_word_embeddings, false);
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::string ours = fmt::format("layers.{}.", layer), theirs = "model." + ours;
    std::vector<float> qkv = narrow_rows(values(theirs + "self_attn.q_proj.weight"), m.num_attention_heads);
    for (const char* name : {"self_attn.k_proj.weight", "self_attn.v_proj.weight"}) {
      const std::vector<float> more = narrow_rows(values(theirs + name), m.num_query_groups);
      qkv.insert(qkv.end(), more.begin(), more.end());
    }
    const convert::ParameterLayout& parameter = model.at(ours + "self_attention.linear_qkv.weight");
    std::vector<float> read(qkv.size());
    // Chunks that end within heads and parts.
    for (int64_t row = 0; row < parameter.rows(); row += 7)
      model.read_rows(parameter, row, std::min<int64_t>(7, parameter.rows() - row), read.data() + row * dim);
    EXPECT_EQ(read, qkv);
    const convert::ParameterLayout& fc1 = model.at(ours + "mlp.linear_fc1.weight");
    std::vector<float> gate = values(theirs + "mlp.gate_proj.weight"),
                       up = values(theirs + "mlp.up_proj.weight");
    gate.insert(gate.end(), up.begin(), up.end());
    read.resize(gate.size());
    model.read_rows(fc1, 0, fc1.rows(), read.data());
    EXPECT_EQ(read, gate);
    // Blocks that start and end within rows: over all columns, and over a range of columns.
    const std::string name = ours + "mlp.linear_fc1.weight";
    for (const auto& [col, width] : {std::pair<int64_t, int64_t>{0, dim}, {5, 11}}) {
      const checkpoint::Block block{col, width, width + 3, 4 * width};
      std::vector<float> part(static_cast<size_t>(block.count)), expected;
      model.read(name, block, part.data());
      for (int64_t i = block.first; i < block.end(); ++i)
        expected.push_back(gate[static_cast<size_t>(i / width * dim + col + i % width)]);
      EXPECT_EQ(part, expected);
    }
  }
  write_bytes(folder / "short.bin", bytes.substr(0, bytes.size() - 4));
  EXPECT_NE(refusal([&] { convert::open_llama2c(folder / "short.bin"); }).find("by its header"),
            std::string::npos);
  EXPECT_NE(refusal([&] { convert::open_llama2c(llama / "config.json"); }).find("llama2.c"),
            std::string::npos);
}

}  // namespace
}  // namespace te::testing
