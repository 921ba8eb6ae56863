// A tiny training model as the source of a decoder's weights, and a decoder with its memory.
#pragma once

#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "generate/decoder.h"
#include "generate/model_source.h"
#include "model/tiny_model.h"
#include "testing/testing.h"

namespace te::testing {

/// A WeightSource that copies the weights of a TinyModel.
class MemoryWeights final : public checkpoint::WeightSource {
 public:
  explicit MemoryWeights(TinyModel& tiny) {
    for (const parameters::Parameter& parameter : tiny.model().parameters().parameters()) {
      const Shape& shape = parameter.shape;
      Stored& stored = parameters_[parameter.name];
      for (int axis = 0; axis < shape.rank(); ++axis) stored.info.shape.push_back(shape[axis]);
      stored.values = tiny.read(parameter.main);
    }
  }
  std::string title() const override { return "tiny"; }
  std::string config() const override { return ""; }
  std::vector<std::string> names() const override {
    std::vector<std::string> names;
    for (const auto& [name, stored] : parameters_) names.push_back(name);
    return names;
  }
  uint64_t hash() const override { return 0; }
  std::optional<checkpoint::TensorInfo> info(std::string_view name) const override {
    const auto found = parameters_.find(name);
    if (found == parameters_.end()) return std::nullopt;
    return found->second.info;
  }
  void read(std::string_view name, const checkpoint::Block& block, float* out) const override {
    const Stored& stored = parameters_.find(name)->second;
    const auto all = checkpoint::Block::rows(0, stored.info.rows(), stored.info.cols());
    checkpoint::for_each_overlap(all, block, [&](int64_t from, int64_t to, int64_t count) {
      std::copy_n(stored.values.data() + from, count, out + to);
    });
  }

 private:
  struct Stored {
    checkpoint::TensorInfo info;
    std::vector<float> values;
  };
  std::map<std::string, Stored, std::less<>> parameters_;
};

class MemorySource final : public generate::ModelSource {
 public:
  MemorySource(TinyModel& tiny, const config::Config& config) {
    title_ = "tiny";
    model_ = config.model;
    weights_ = std::make_unique<MemoryWeights>(tiny);
  }
};

/// A decoder with its memory and weights, ready to run.
class ReadyDecoder {
 public:
  ReadyDecoder(const Context& context, const config::Config& config, const generate::ModelSource& source,
               const generate::DecoderSizes& sizes, const parallel::Groups* groups = nullptr,
               const model::FeedForwardFactory& make_feed_forward = model::make_feed_forward)
      : context_(context),
        single_(parallel::Groups::single()),
        decoder_(config, groups ? *groups : single_, sizes, make_feed_forward) {
    decoder_.plan(plan_, context);
    memory_ = plan_.allocate(context);
    decoder_.bind(context);
    generate::load_weights(context, source, decoder_.parameters());
    decoder_.quantize_weights(context);
  }
  generate::Decoder& get() { return decoder_; }

  std::vector<float> append(const std::vector<generate::Continuation>& next) {
    const std::span<const float> logits = decoder_.append(context_, next);
    return {logits.begin(), logits.end()};
  }
  std::vector<float> append_all(const std::vector<generate::Continuation>& next) {
    const std::span<const float> logits = decoder_.append_all(context_, next);
    return {logits.begin(), logits.end()};
  }

 private:
  const Context& context_;
  parallel::Groups single_;
  generate::Decoder decoder_;
  MemoryPlan plan_;
  DeviceBuffer memory_;
};

/// Variants of a layer, each in a tiny model.
struct ModelVariant {
  const char* name;
  config::Family family = config::Family::llama;
  void (*change)(config::ModelConfig&) = [](config::ModelConfig&) {};
};
inline void PrintTo(const ModelVariant& variant, std::ostream* out) {
  *out << variant.name;
}
inline config::Config tiny_config_of(const ModelVariant& variant) {
  config::Config config = tiny_config(variant.family);
  variant.change(config.model);
  return config;
}
inline std::vector<ModelVariant> model_variants() {
  using config::Family, config::ModelConfig;
  return {
      {"gpt", Family::gpt},
      {"llama", Family::llama},
      {"llama_biases", Family::llama,
       [](ModelConfig& m) { m.add_qkv_bias = m.add_proj_bias = m.add_mlp_bias = true; }},
      {"llama_window", Family::llama, [](ModelConfig& m) { m.sliding_window = 5; }},
      {"llama_window_pattern", Family::llama,
       [](ModelConfig& m) { m.num_layers = 3, m.sliding_window = 5, m.window_pattern = "f w"; }},
      {"gemma3", Family::llama, set_gemma3},
      {"nanochat", Family::llama, set_nanochat},
      {"qwen3", Family::llama, [](ModelConfig& m) { m.qk_norm = config::QkNorm::head, m.kv_channels = 16; }},
      {"olmo2", Family::llama,
       [](ModelConfig& m) {
         m.qk_norm = config::QkNorm::projection, m.norm_placement = config::NormPlacement::post;
       }},
      {"gpt_neox", Family::gpt,
       [](ModelConfig& m) {
         m.position_embedding = config::PositionEmbedding::rope, m.rotary_percent = 0.5;
         m.parallel_residual = true, m.activation = config::ActivationKind::gelu_exact;
       }},
      {"experts", Family::llama, [](ModelConfig& m) {
         set_fp8_experts(m);
         m.init_method_std = 0.1;  // the hidden size is four times that of the others
       }}};
}

/// Tokens [batch, seq]; a pure function of the seed.
inline std::vector<int32_t> random_tokens(const config::Config& config, uint64_t seed) {
  std::vector<int32_t> tokens(
      static_cast<size_t>(config.training.micro_batch_size * config.model.seq_length));
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] =
        static_cast<int32_t>(philox(seed, 7, i).word[0] % static_cast<uint32_t>(config.model.vocab_size));
  return tokens;
}

/// Logits of a training forward pass, [batch * seq, vocab], without the padding of the vocabulary.
inline std::vector<float> full_logits(TinyModel& tiny, const config::Config& config,
                                      const std::vector<int32_t>& tokens) {
  tiny.set_batch(tokens, tokens);
  const int64_t padded = config.model.padded_vocab_size(), vocab = config.model.vocab_size;
  TestTensor logits(tiny.context(), DType::f32, {tiny.tokens().numel(), padded});
  tiny.model().forward_logits(tiny.context(), tiny.tokens(), logits);
  const std::vector<float> all = logits.floats();
  std::vector<float> result;
  for (int64_t row = 0; row < tiny.tokens().numel(); ++row)
    result.insert(result.end(), all.begin() + row * padded, all.begin() + row * padded + vocab);
  return result;
}

}  // namespace te::testing
