// te-generate logits: writes a model's logits for given tokens, for comparison with another program.
#include <algorithm>
#include <cstring>

#include "checkpoint/safetensors.h"
#include "common/output_file.h"
#include "core/error.h"
#include "generate/command.h"
#include "generate/loaded_model.h"

namespace te::generate {
namespace {

struct Tokens {
  int64_t batch = 0, seq = 0;
  std::vector<int32_t> ids;  ///< [batch, seq]
};

Tokens read_tokens(const std::string& path, const config::ModelConfig& model) {
  const SafetensorsReader file(path);
  const SafetensorsTensor& tensor = file.at("tokens");
  const bool wide = tensor.dtype == DType::i64;
  if ((!wide && tensor.dtype != DType::i32) || tensor.shape.size() != 2 || tensor.bytes == 0)
    user_error("{}: tensor tokens must be I32 or I64 of shape [sequences, tokens]", path);
  Tokens tokens{tensor.shape[0], tensor.shape[1], {}};
  if (tokens.seq > longest_sequence(model))
    user_error("{}: sequences of {} tokens exceed the model's context of {}", path, tokens.seq,
               longest_sequence(model));
  const size_t size = wide ? 8 : 4;
  for (size_t at = 0; at < tensor.bytes; at += size) {
    int64_t id = 0;
    int32_t narrow = 0;
    wide ? std::memcpy(&id, tensor.data + at, 8) : std::memcpy(&narrow, tensor.data + at, 4);
    if (!wide) id = narrow;
    if (id < 0 || id >= model.vocab_size)
      user_error("{}: token {} is not in the model's vocabulary of {}", path, id, model.vocab_size);
    tokens.ids.push_back(static_cast<int32_t>(id));
  }
  return tokens;
}

struct LogitsArguments {
  CLI::App* command = nullptr;
  ModelOptions model;
  std::string tokens, output;
};

int run_logits(const LogitsArguments& a, parallel::World& world) {
  a.model.check("te-generate logits");
  if (a.tokens.empty() || a.output.empty())
    user_error("--tokens FILE and --out FILE are required; see te-generate logits --help");
  std::unique_ptr<ModelSource> source;
  std::unique_ptr<SafetensorsWriter> writer;
  Tokens tokens;
  // All errors of names come before the model is loaded.
  world.run_collectively([&] {
    source = open_model(a.model.checkpoint, a.model.adapters);
    tokens = read_tokens(a.tokens, source->model());
    if (world.leader())
      writer = std::make_unique<SafetensorsWriter>(
          apps::replaceable_file("--out", a.output),
          std::vector<SafetensorsSpec>{
              {"logits", DType::f32, {tokens.batch, tokens.seq, source->model().vocab_size}}});
  });
  LoadedModel model(world, *source, a.model.run, tokens.seq, 1);
  for (int64_t i = 0; i < tokens.batch; ++i) {
    model.decoder.reset(0);
    const auto ids =
        std::span(tokens.ids).subspan(static_cast<size_t>(i * tokens.seq), static_cast<size_t>(tokens.seq));
    const std::vector<Continuation> next{{0, ids}};
    const std::span<const float> logits = model.decoder.append_all(model.context, next);
    if (writer) writer->write("logits", logits.data(), logits.size_bytes());
  }
  if (writer) writer->finish();
  if (world.leader()) fmt::print("{}: {} sequences of {} tokens\n", a.output, tokens.batch, tokens.seq);
  return 0;
}

}  // namespace

apps::Command add_logits(CLI::App& app) {
  const auto arguments = std::make_shared<LogitsArguments>();
  LogitsArguments& a = *arguments;
  a.command = app.add_subcommand("logits", "Write a model's logits for given tokens");
  a.model.add_to(a.command);
  a.command->add_option("--tokens", a.tokens, "safetensors file with tokens: I32 or I64, [sequences, tokens]")
      ->type_name("FILE");
  a.command
      ->add_option("--out", a.output, "safetensors file to write: logits, F32 [sequences, tokens, vocab]")
      ->type_name("FILE");
  a.command->footer(
      "scripts/convert_checkpoint.py --verify compares these logits with those of transformers.");
  return {a.command, [arguments](parallel::World& world) { return run_logits(*arguments, world); }};
}

}  // namespace te::generate
