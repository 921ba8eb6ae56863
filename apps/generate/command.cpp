#include "generate/command.h"

#include "core/error.h"

namespace te::generate {

void ModelOptions::add_to(CLI::App* command) {
  command
      ->add_option(
          "--checkpoint", checkpoint,
          "Checkpoint of te-train (a step folder, or a directory: its latest), Hugging Face folder, or "
          "file of llama2.c")
      ->type_name("PATH");
  command->add_option("--device", run.device, "auto, cpu or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  command->add_option("--dtype", run.dtype, "bf16 or fp32; auto: bf16 on a GPU, fp32 on the CPU")
      ->check(CLI::IsMember({"auto", "bf16", "fp32"}))
      ->capture_default_str();
  command->add_option("--fp8", run.fp8, "Linear layers in FP8 with tensorwise scales: off, hybrid or e4m3")
      ->check(CLI::IsMember({"off", "hybrid", "e4m3"}))
      ->capture_default_str();
  command->add_option("--tensor", run.tensor, "Ranks that share the model, started by mpirun -n")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
}

void ModelOptions::check(const char* command) const {
  if (checkpoint.empty()) user_error("--checkpoint PATH is required; see {} --help", command);
}

}  // namespace te::generate
