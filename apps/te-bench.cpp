// te-bench: times the parts of a training step on this device. Each subcommand has its own file in apps/bench/; their
// common parts (device, repetitions, report) are in bench/session.h.
#include <CLI/CLI.hpp>

#include "bench/attention.h"
#include "bench/comm.h"
#include "bench/decode.h"
#include "bench/experts.h"
#include "bench/gemm.h"
#include "bench/layer.h"
#include "bench/session.h"
#include "bench/step.h"
#include "common/command_line.h"
#include "common/config_words.h"
#include "common/standard_output.h"
#include "parallel/world.h"

namespace {

int body(te::parallel::World& world, int argc, char** argv) {
  CLI::App app{
      "Times the parts of a training step on this machine's GPU (or CPU).\n"
      "Example: te-bench gemm --json gemm.json",
      "te-bench"};
  app.require_subcommand(1);
  te::bench::add_gemm_command(app, world);
  te::bench::add_attention_command(app, world);
  te::bench::add_experts_command(app, world);
  te::bench::add_layer_command(app, world);
  te::bench::add_step_command(app, world);
  te::bench::add_comm_command(app, world);
  te::bench::add_decode_command(app, world);
  te::apps::parse_command_line(app, argc, argv, !world.leader(), te::apps::config_words());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  te::apps::reserve_standard_streams();
  return te::parallel::run_job("te-bench", te::apps::checked_output<body, te::parallel::World>, argc, argv);
}
