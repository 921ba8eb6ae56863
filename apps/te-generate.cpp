// te-generate: continues text with a trained model, evaluates it on tasks, measures its loss on a dataset, writes its
// logits, or compares them with another model's. The implementation is in apps/generate/.
#include <CLI/CLI.hpp>

#include "common/command_line.h"
#include "common/standard_output.h"
#include "core/log.h"
#include "generate/command.h"

namespace {

constexpr const char* kFooter = R"(Examples:
  te-generate --checkpoint runs/small/checkpoints --prompt "In the beginning" --max-tokens 200
  te-generate --checkpoint llama/ --prompt-file story.txt --temperature 0.8 --top-p 0.95 --seed 7 --stop "THE END"
  mpirun -n 2 te-generate --tensor 2 --fp8 hybrid --checkpoint llama/ --prompt "Once upon a time"
  te-generate chat --checkpoint qwen/ --temperature 0.7
  te-generate evaluate --checkpoint llama/ --tasks hellaswag,arc_easy --data eval/ --output results.json
  te-generate perplexity --checkpoint runs/small/checkpoints --data data/bible_valid
  te-generate divergence --checkpoint llama_fp8/ --reference llama/ --text sample.txt

Text is written to standard output as it is generated. See also docs/how-to/generate.md and docs/how-to/evaluate.md.

Exit codes: 0 done, 1 internal error, 2 wrong input, 130 interrupted.)";

int body(te::parallel::World& world, int argc, char** argv) {
  CLI::App app{"te-generate: generates text with a te-train or Hugging Face model, and evaluates it.",
               "te-generate"};
  app.footer(kFooter);
  app.require_subcommand(0, 1);
  const te::apps::Command generate = te::generate::add_generate(app);
  const te::apps::Command commands[] = {te::generate::add_chat(app), te::generate::add_perplexity(app),
                                        te::generate::add_evaluate(app), te::generate::add_divergence(app),
                                        te::generate::add_logits(app)};
  if (!te::apps::parse_command_line(app, argc, argv, !world.leader())) return 0;
  te::init_log(world.leader() ? te::LogLevel::warning : te::LogLevel::error, te::LogStream::error);
  for (const te::apps::Command& command : commands)
    if (command.chosen()) return command.run(world);
  return generate.run(world);
}

}  // namespace

int main(int argc, char** argv) {
  te::apps::reserve_standard_streams();
  return te::parallel::run_job("te-generate", te::apps::checked_output<body, te::parallel::World>, argc,
                               argv);
}
