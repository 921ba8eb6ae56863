// te-convert import: makes a checkpoint from a Hugging Face folder or a llama2.c file.
#include "convert/importer.h"

#include <array>
#include <filesystem>
#include <memory>
#include <string>

#include "checkpoint/kept_files.h"
#include "common/progress.h"
#include "convert/commands.h"
#include "convert/output_folder.h"
#include "core/error.h"

namespace te::convert {
namespace {

namespace fs = std::filesystem;

struct ImportArguments {
  std::string source, output, format = "huggingface";
  bool force = false;
};

/// Whether the folder contains only files of an earlier import, and no training run.
bool is_import(const fs::path& folder) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    if (name != "step_00000000" && name != "latest" && name != "model.yaml" &&
        name != checkpoint::kKeptFolder)
      return false;
  }
  return fs::exists(folder / "latest", error) && !error;
}

void import(const ImportArguments& arguments) {
  const bool hugging_face = arguments.format == "huggingface";
  if (std::error_code error; hugging_face && fs::is_regular_file(arguments.source, error))
    user_error(
        "{}: is a file, not the folder of a Hugging Face model; for a file of llama2.c, give --format "
        "llama2c",
        arguments.source);
  const ForeignModel model =
      hugging_face ? open_hugging_face(arguments.source) : open_llama2c(arguments.source);
  OutputFolder output(arguments.output, arguments.force, "a checkpoint that te-convert import made",
                      is_import);
  if (hugging_face) {
    checkpoint::copy_files(checkpoint::kept_files(arguments.source), output.path() / checkpoint::kKeptFolder);
  }
  write_config_fragment(model, output.path());
  apps::Progress progress(total_bytes(model), "written");
  const Converted done = write_checkpoint(model, output.path(), [&](int64_t bytes) { progress.show(bytes); });
  output.commit();
  fmt::print("{}: {} tensors, {:.1f} MB in {:.1f} s; model.yaml has the model's config\n", arguments.output,
             done.tensors, static_cast<double>(done.bytes) / 1e6, progress.seconds());
}

}  // namespace

void add_import(CLI::App& app) {
  auto arguments = std::make_shared<ImportArguments>();
  CLI::App* command = app.add_subcommand("import", "Make a checkpoint from a Hugging Face model");
  command
      ->add_option("source", arguments->source,
                   "Folder with config.json and safetensors files, or a llama2.c file")
      ->required()
      ->type_name("PATH");
  command->add_option("--out", arguments->output, "Checkpoint directory to write")
      ->required()
      ->type_name("DIR");
  command
      ->add_option("--format", arguments->format, "huggingface, or llama2c: the legacy FP32 .bin of llama2.c")
      ->check(CLI::IsMember({"huggingface", "llama2c"}))
      ->capture_default_str();
  command->add_flag("--force", arguments->force, "Replace an earlier import");
  command->footer(
      "Supports Llama, Qwen2, Qwen3, Mistral, Ministral, OLMo 2, Gemma 3, Phi-3, Mixtral, Qwen2-MoE,\n"
      "Qwen3-MoE, OLMoE, GPT-2, GPT-NeoX and nanochat (docs/reference/models.md). BF16 weights stay BF16.\n\n"
      "  te-convert import models/Llama-3.2-1B --out checkpoints/llama_1b\n"
      "  te-train --config run.yaml --set checkpoint.init_from=checkpoints/llama_1b");
  command->callback([arguments] { import(*arguments); });
}

}  // namespace te::convert
