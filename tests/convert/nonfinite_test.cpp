// Import and generation refuse a model or an adapter with a weight that is not finite and name the tensor. Training
// would only fail when it saves a checkpoint.
#include <cmath>

#include "convert/adapter.h"
#include "convert/convert_testing.h"
#include "generate/model_source.h"

namespace te::testing {
namespace {

/// Replaces the last value of a tensor by `bits`.
void replace_last_value(const fs::path& path, const std::string& tensor, const std::string& bits) {
  std::string bytes = read_bytes(path);
  {
    const SafetensorsReader file(path);
    const SafetensorsTensor& stored = file.at(tensor);
    bytes.replace(stored.offset + stored.bytes - bits.size(), bits.size(), bits);
  }
  write_bytes(path, bytes);
}

fs::path with_last_value(const char* name, const char* tensor, const std::string& bits, const fs::path& to) {
  const fs::path folder = copy_fixture(name, to);
  replace_last_value(folder / "model.safetensors", tensor, bits);
  return folder;
}

struct Place {
  const char *fixture, *tensor;
  std::string bits;
};

TEST(NotFinite, IsRefusedAndNamed) {
  const std::string nan("\x00\x00\xc0\x7f", 4), infinity("\x00\x00\x80\xff", 4), bf16_nan("\xc0\x7f", 2),
      f16_infinity("\x00\x7c", 2);
  const std::vector<Place> places = {
      {"qwen3", "model.layers.1.mlp.down_proj.weight", nan},  // rows
      {"qwen3", "model.norm.weight", infinity},
      {"gpt2", "transformer.h.1.mlp.c_fc.weight", infinity},                    // transposed
      {"gpt_neox", "gpt_neox.layers.0.attention.query_key_value.weight", nan},  // permuted
      {"llama3_tied_bf16", "model.embed_tokens.weight", bf16_nan},
      {"llama_linear", "model.layers.0.self_attn.q_proj.weight", f16_infinity},
  };
  for (const Place& place : places) {
    const TemporaryFolder folder;
    const fs::path source = with_last_value(place.fixture, place.tensor, place.bits, folder / "hf");
    const std::string what = fmt::format("tensor {} has infinite or NaN values", place.tensor);
    TE_EXPECT_REFUSED(what, import_to(source, folder / "te"));
    EXPECT_FALSE(fs::exists(folder / "te/step_00000000"));
    const auto model = generate::open_model(source);
    const convert::ForeignModel foreign = convert::open_hugging_face(source);
    TE_EXPECT_REFUSED(what, {
      for (const convert::ParameterLayout& parameter : foreign.parameters()) {
        std::vector<float> values(static_cast<size_t>(parameter.rows() * parameter.cols()));
        model->weights().read(parameter.name, checkpoint::Block::rows(0, parameter.rows(), parameter.cols()),
                              values.data());
      }
    });
  }
}

TEST(NotFinite, IsRefusedAndNamedInAdapters) {
  const convert::ForeignModel base = convert::open_hugging_face(fixture("llama"));
  for (const char* matrix : {"lora_A", "lora_B"}) {
    const TemporaryFolder folder;
    fs::copy(fs::path(TE_SOURCE_DIR) / "tests/fixtures/peft/trained", folder / "peft");
    convert::open_adapter(folder / "peft", base.model());
    const std::string tensor = fmt::format("base_model.model.model.layers.1.mlp.down_proj.{}.weight", matrix);
    replace_last_value(folder / "peft/adapter_model.safetensors", tensor, std::string("\x00\x00\xc0\x7f", 4));
    TE_EXPECT_REFUSED(tensor + " has infinite or NaN values",
                      convert::open_adapter(folder / "peft", base.model()));
  }
}

// Control characters in names of tensors are escaped.
TEST(ForeignNames, ArePrintable) {
  const TemporaryFolder folder;
  const fs::path copy = copy_fixture("gpt2", folder / "hf");
  const SafetensorsReader file(fixture("gpt2") / "model.safetensors");
  std::vector<SafetensorsSpec> specs{{"a\x1b[2J\n", DType::f32, {1}}};
  for (const SafetensorsTensor& tensor : file.tensors())
    specs.push_back({std::string(tensor.name), *tensor.dtype, tensor.shape});
  SafetensorsWriter writer(copy / "model.safetensors", specs);
  const float zero = 0;
  writer.write("a\x1b[2J\n", &zero, sizeof(zero));
  for (const SafetensorsTensor& tensor : file.tensors())
    writer.write(std::string(tensor.name), tensor.data, tensor.bytes);
  writer.finish();
  TE_EXPECT_REFUSED("tensor a\\x1b[2J\\x0a does not belong", convert::open_hugging_face(copy));
}

}  // namespace
}  // namespace te::testing
