// te-convert export: writes a checkpoint as a folder that Hugging Face transformers loads, or an adapter checkpoint as
// one that PEFT loads.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/progress.h"
#include "convert/adapter.h"
#include "convert/commands.h"
#include "convert/exporter.h"
#include "convert/output_folder.h"
#include "core/error.h"
#include "core/log.h"
#include "text/tokenizer.h"
#include "text/vocabulary_check.h"

namespace te::convert {
namespace {

namespace fs = std::filesystem;

struct ExportArguments {
  std::string checkpoint, output, tokenizer, dtype = "auto", fp8 = "off";
  uint64_t max_shard_bytes = 5'000'000'000;
  const CLI::Option* max_shard_size = nullptr;
  bool force = false;
};

/// Whether the folder looks like an exported model: only regular files, including config.json.
bool is_model_folder(const fs::path& folder) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (!entry.is_regular_file(error)) return false;
  return fs::exists(folder / "config.json", error) && !error;
}

/// `bytes`, or the path of the tokenizer's files; empty, with a warning, if there are none.
std::string tokenizer_of(const ExportArguments& arguments, const ExportSource& source) {
  if (!arguments.tokenizer.empty()) return arguments.tokenizer;
  const std::string folder = source.reader.folder().string();
  if (source.tokenizer == "bytes") {
    fmt::print(
        stderr,
        "te-convert: warning: {} was trained with the bytes tokenizer, which transformers does not have\n",
        folder);
    return source.tokenizer;
  }
  const fs::path kept = checkpoint::find_kept_folder(folder);
  if (kept.empty())
    fmt::print(stderr, "te-convert: warning: no tokenizer is stored with {}; add one with --tokenizer PATH\n",
               folder);
  return kept.string();
}

std::vector<checkpoint::KeptFile> files_of(const std::string& tokenizer, const ExportArguments& arguments) {
  if (arguments.tokenizer.empty())
    return tokenizer == "bytes" ? std::vector<checkpoint::KeptFile>{} : checkpoint::kept_files(tokenizer);
  std::vector<checkpoint::KeptFile> files = checkpoint::tokenizer_files(tokenizer);
  if (files.empty())
    user_error("--tokenizer {}: not a tokenizer file or folder; give the tokenizer of the model", tokenizer);
  return files;
}

/// Warns if the tokenizer of --tokenizer seems to belong to another model.
void check_vocabulary(const ExportArguments& arguments, const ExportSource& source) {
  if (arguments.tokenizer.empty()) return;
  std::string warning;
  try {
    warning = text::vocabulary_warning(*text::make_tokenizer(arguments.tokenizer),
                                       source.reader.folder().string(), source.model.vocab_size);
  } catch (const UserError&) {  // transformers may read tokenizers that te-convert cannot
  }
  if (!warning.empty()) fmt::print(stderr, "te-convert: warning: {}\n", warning);
}

/// The ids of a tokenizer's special tokens for config.json: null if there is no such token in the model's vocabulary.
nlohmann::json token_ids(const std::string& tokenizer, int64_t vocab_size) {
  const auto id = [&](std::optional<int32_t> token) {
    return token && *token < vocab_size ? nlohmann::json(*token) : nlohmann::json(nullptr);
  };
  try {
    const auto opened = text::make_tokenizer(tokenizer);
    return {{"bos_token_id", id(opened->begin_of_document())},
            {"eos_token_id", id(opened->end_of_document())},
            {"pad_token_id", nullptr}};
  } catch (const UserError& error) {
    fmt::print(stderr, "te-convert: warning: config.json has no special token ids: {}\n", error.what());
    return nlohmann::json::object();
  }
}

bool is_adapter_folder(const fs::path& folder) {
  std::error_code error;
  return fs::exists(folder / "adapter_config.json", error) && !error;
}

void export_adapter(const ExportArguments& arguments, const checkpoint::Reader& reader) {
  const char* const given = arguments.dtype != "auto"               ? "--dtype"
                            : arguments.fp8 != "off"                ? "--fp8"
                            : !arguments.tokenizer.empty()          ? "--tokenizer"
                            : arguments.max_shard_size->count() > 0 ? "--max-shard-size"
                                                                    : nullptr;
  if (given != nullptr)
    user_error(
        "{}: is an adapter, which is exported in FP32 as one file without tokenizer; leave out {}, or run "
        "te-convert merge",
        reader.folder().string(), given);
  if (const std::vector<std::filesystem::path> bases = bases_of(reader); bases.size() > 1)
    log_warning(
        "{}: was trained on another adapter, {}, which the exported adapter does not contain; export that "
        "one, too, or merge both (te-convert merge)",
        reader.folder().string(), bases.front().string());
  OutputFolder output(arguments.output, arguments.force, "the folder of a PEFT adapter", is_adapter_folder);
  const int64_t tensors = write_peft(reader, output.path());
  output.commit();
  fmt::print("{}: {} tensors of a PEFT adapter\n", arguments.output, tensors);
}

void export_checkpoint(const ExportArguments& arguments) {
  if (const checkpoint::Reader reader(arguments.checkpoint); reader.manifest().base)
    return export_adapter(arguments, reader);
  const ExportSource source(arguments.checkpoint);
  ExportOptions options;
  options.max_shard_bytes =
      static_cast<int64_t>(std::clamp<uint64_t>(arguments.max_shard_bytes, 1, INT64_MAX));
  if (arguments.dtype != "auto") options.dtype = arguments.dtype == "bf16" ? DType::bf16 : DType::f32;
  TE_CHECK(from_string(arguments.fp8, options.fp8), "--fp8 {} was not checked", arguments.fp8);
  const int64_t total = exported_bytes(source, options);  // errors come before the warnings below
  if (const std::string tokenizer = tokenizer_of(arguments, source); !tokenizer.empty()) {
    options.kept = files_of(tokenizer, arguments);
    check_vocabulary(arguments, source);
    options.token_ids = [tokenizer, &source] { return token_ids(tokenizer, source.model.vocab_size); };
  }
  OutputFolder output(arguments.output, arguments.force, "the folder of a model (files and a config.json)",
                      is_model_folder);
  apps::Progress progress(total, "written");
  const Converted done =
      write_hugging_face(source, output.path(), options, [&](int64_t bytes) { progress.show(bytes); });
  output.commit();
  fmt::print("{}: {} tensors, {:.1f} MB in {} file{}, {:.1f} s\n", arguments.output, done.tensors,
             static_cast<double>(done.bytes) / 1e6, done.files, done.files == 1 ? "" : "s",
             progress.seconds());
  if (done.kept > 0)
    fmt::print(
        "{} weights of linear layers stay in high precision: their dimensions are not multiples of {}\n",
        done.kept, kFp8Block);
}

}  // namespace

void add_export(CLI::App& app) {
  auto arguments = std::make_shared<ExportArguments>();
  CLI::App* command = app.add_subcommand(
      "export", "Write a checkpoint as a Hugging Face model folder, or an adapter as a PEFT folder");
  command
      ->add_option(
          "checkpoint", arguments->checkpoint,
          "Step folder, checkpoint directory or run folder (its latest checkpoint), or its file `best`")
      ->required()
      ->type_name("PATH");
  command->add_option("--out", arguments->output, "Model folder to write")->required()->type_name("FOLDER");
  command
      ->add_option("--dtype", arguments->dtype,
                   "bf16 or fp32; auto: as in the checkpoint (fp32 after training), or bf16 with --fp8")
      ->check(CLI::IsMember({"auto", "bf16", "fp32"}))
      ->capture_default_str();
  command
      ->add_option(
          "--fp8", arguments->fp8,
          "FP8 linear layers: block: DeepSeek's blocks of 128 x 128; tensor: compressed-tensors with the "
          "delayed scales of an FP8 run")
      ->check(CLI::IsMember({"off", "block", "tensor"}))
      ->capture_default_str();
  arguments->max_shard_size =
      command
          ->add_option("--max-shard-size", arguments->max_shard_bytes,
                       "Maximum size of a file, for example 500MB, 5GB (powers of 1000) or 4GiB")
          ->transform(CLI::AsSizeValue(true))
          ->default_str("5GB");
  command
      ->add_option("--tokenizer", arguments->tokenizer,
                   "Tokenizer file or folder (default: the one stored with the checkpoint)")
      ->type_name("PATH");
  command->add_flag("--force", arguments->force, "Replace an existing model folder");
  command->footer(
      "  te-convert export runs/tuned/checkpoints --out models/tuned --dtype bf16\n"
      "  te-convert export runs/tuned/checkpoints --out models/tuned_fp8 --fp8 block");
  command->callback([arguments] { export_checkpoint(*arguments); });
}

}  // namespace te::convert
