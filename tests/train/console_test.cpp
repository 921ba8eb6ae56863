// The console: one line per step at any width, colors only on terminals, and a start screen that fits.
#include "train/console.h"

#include <algorithm>
#include <filesystem>
#include <regex>

#include "core/terminal.h"
#include "te_train_testing.h"
#include "testing/pseudo_terminal.h"

namespace te::train {
namespace {

using testing::on_terminal;
using testing::Result;
using testing::split;
using testing::TrainFolder;

TEST(StepTable, ALineFitsAtEveryWidth) {
  const StepMetrics m = {.step = 123456,
                         .consumed_tokens = 987654321000,
                         .loss = 10.8249,
                         .grad_norm = 12.5,
                         .lr = 6e-4,
                         .seconds = 1.2345,
                         .tokens_per_s = 1234567,
                         .tflops = 789,
                         .speed_of_light = 0.5};
  MetricsOptions options = {.train_steps = 300000, .show_tflops = true, .bf16_peak = 1e15};
  for (const bool fp8 : {false, true}) {
    options.fp8 = fp8;
    const std::vector<Cell> all = step_cells(m, options, {}, 123456);
    size_t most = 0;
    for (int columns = 40; columns <= 200; ++columns) {
      int gap = 0;
      const std::vector<Cell> cells = fitting(all, columns, gap);
      const std::string line = joined(cells, gap, false), heading = joined(cells, gap, true);
      EXPECT_LE(line.size(), static_cast<size_t>(columns));
      EXPECT_EQ(line.size(), heading.size());
      EXPECT_GE(cells.size(), most) << "a wider terminal shows at least as many cells";
      most = cells.size();
      for (const char* name : {"step", "loss", "ETA"}) EXPECT_NE(heading.find(name), std::string::npos);
    }
    EXPECT_EQ(most, all.size());
    // 80 columns, 11 of them for the time.
    int gap = 0;
    const std::string narrow = joined(fitting(all, 69, gap), gap, true);
    for (const char* name : {"grad norm", "lr", "tokens/s", "ms/step"})
      EXPECT_NE(narrow.find(name), std::string::npos) << narrow;
  }
}

TEST(StepTable, MfuNeedsTheGpusPeak) {
  const StepMetrics m = {.step = 3, .tflops = 156};
  MetricsOptions options = {.train_steps = 10, .show_tflops = true, .bf16_peak = 312e12};  // A100
  const auto cells = [&] { return step_cells(m, options, {}, 0); };
  TE_EXPECT_CONTAINS(joined(cells(), 1, true), "MFU %");
  TE_EXPECT_CONTAINS(joined(cells(), 1, false), " 50.0 ");
  options.bf16_peak = 0.0;
  EXPECT_EQ(joined(cells(), 1, true).find("MFU"), std::string::npos);
  TE_EXPECT_CONTAINS(joined(cells(), 1, true), "TFLOP/s");
}

TEST(StepTable, SpeedOfLightIsShownIfKnown) {
  StepMetrics m = {.step = 3, .speed_of_light = 0.6254};
  const MetricsOptions options = {.train_steps = 10, .show_tflops = true, .fp8 = true};
  TE_EXPECT_CONTAINS(joined(step_cells(m, options, {}, 0), 1, true), " SOL % ");
  TE_EXPECT_CONTAINS(joined(step_cells(m, options, {}, 0), 1, false), "  62.5 ");
  m.speed_of_light.reset();
  EXPECT_EQ(joined(step_cells(m, options, {}, 0), 1, true).find("SOL"), std::string::npos);
}

TEST(StepTable, NumbersOfAnySize) {
  MetricsOptions options = {.train_steps = 10};
  StepMetrics m = {.step = 3, .consumed_tokens = 1500000, .loss = 26233.125, .grad_norm = 1e-9};
  const auto line = [&] { return joined(step_cells(m, options, {}, 400 * 3600), 1, false); };
  TE_EXPECT_CONTAINS(line(), " 30%");
  TE_EXPECT_CONTAINS(line(), " 26233 ");
  TE_EXPECT_CONTAINS(line(), " 1.50M ");
  TE_EXPECT_CONTAINS(line(), " 16d 16h");
  m.loss = std::nan("");
  TE_EXPECT_CONTAINS(line(), " nan ");
}

std::string without_colors(const std::string& text) {
  return std::regex_replace(text, std::regex("\x1b\\[[0-9;]*m"), "");
}

class ConsoleOfARun : public ::testing::Test {
 protected:
  std::string command(const std::string& run, const std::string& more = "") const {
    return "OMP_NUM_THREADS=1 TERM=xterm " + more + " " TE_TRAIN_EXECUTABLE " --config " +
           (folder_ / "base.yaml") +
           " --set precision.fp8=hybrid --set training.eval_interval=3 --set logging.directory=" +
           folder_.run_folder(run);
  }
  TrainFolder folder_;
};

TEST_F(ConsoleOfARun, FitsTheTerminal) {
  for (const unsigned short columns : {80, 160}) {
    const std::string shown = on_terminal(command("a" + std::to_string(columns)), columns);
    EXPECT_NE(shown.find("\x1b["), std::string::npos) << shown;
    const std::string text = without_colors(shown);
    std::vector<std::string> lines = split(text, '\n');
    // A word longer than a line, such as the path of a temporary folder, is not broken.
    for (const std::string& line : lines) {
      if (line.find(folder_ / "") == std::string::npos) {
        EXPECT_LE(line.size(), columns) << line;
      }
    }
    const auto heading = std::ranges::find_if(lines, [](const std::string& line) {
      return line.find("step") != std::string::npos && line.find("grad norm") != std::string::npos;
    });
    ASSERT_NE(heading, lines.end()) << text;
    EXPECT_LE(heading - lines.begin(), 40) << "the start takes more than a screen";
    for (int step = 1; step <= 6; ++step) {
      const std::string cell = " " + std::to_string(step) + "/6 ";
      const auto line = std::ranges::find_if(
          lines, [&](const std::string& found) { return found.find(cell) != std::string::npos; });
      ASSERT_NE(line, lines.end()) << text;
      EXPECT_EQ(line->size(), heading->size()) << *line << "\n" << *heading;
    }
    TE_EXPECT_CONTAINS(text, "step 3: valid loss ");
    // The date is shown at any width.
    EXPECT_TRUE(std::regex_search(*heading + *(heading + 1), std::regex("20[0-9]{2}-[0-9]{2}-[0-9]{2}")));
  }
}

TEST_F(ConsoleOfARun, ColorsOnlyOnTerminals) {
  const std::string plain = on_terminal(command("a", "NO_COLOR=1"));
  EXPECT_EQ(plain.find('\x1b'), std::string::npos) << plain;
  EXPECT_EQ(on_terminal(command("b", "TERM=dumb")).find('\x1b'), std::string::npos);
  const Result piped = folder_.run("c");
  EXPECT_EQ(piped.code, 0);
  EXPECT_EQ(piped.out.find('\x1b'), std::string::npos) << piped.out;
}

TEST_F(ConsoleOfARun, LevelsAndFullTables) {
  EXPECT_EQ(folder_.run("a").code, 0);
  const Result quiet = folder_.run_raw("--overwrite --log-level warning --config " + (folder_ / "base.yaml") +
                                       " --set logging.directory=" + folder_.run_folder("a"));
  EXPECT_EQ(quiet.code, 0);
  EXPECT_EQ(split(quiet.out, '\n').size(), 1u) << quiet.out;
  TE_EXPECT_CONTAINS(quiet.out, "warning: --overwrite: removed an earlier run");
  EXPECT_EQ(folder_.csv("a").size(), 6u);
  testing::expect_refused(folder_.run_raw("--log-level loud --config " + (folder_ / "base.yaml")),
                          "--log-level");

  const Result full = folder_.run_raw("--verbose --config " + (folder_ / "base.yaml") +
                                      " --set logging.directory=" + folder_.run_folder("b"));
  EXPECT_EQ(full.code, 0);
  TE_EXPECT_CONTAINS(full.out, "effective config:\n");
  TE_EXPECT_CONTAINS(full.out, "  linear_qkv  ");
}

// The run folder has what the screen leaves out; its config is complete and gives the same run.
TEST_F(ConsoleOfARun, RunFolderHasCompleteTables) {
  const Result result = folder_.run("a", {"optimizer.clip_grad=0.5"});
  EXPECT_EQ(result.code, 0);
  TE_EXPECT_CONTAINS(result.out, "clip_grad: 0.5");
  EXPECT_EQ(result.out.find("beta1"), std::string::npos) << result.out;
  const std::string yaml = testing::read_file(folder_.run_folder("a") + "/effective_config.yaml");
  TE_EXPECT_CONTAINS(yaml, "  clip_grad: 0.5 ");
  TE_EXPECT_CONTAINS(yaml, "  beta1: 0.9 ");
  TE_EXPECT_CONTAINS(yaml, "  # kv_channels: 8 ");
  const Result again =
      folder_.run_raw("--print-config --config " + folder_.run_folder("a") + "/effective_config.yaml");
  const auto values = [](const std::string& text) {  // without their origins
    return std::regex_replace(text, std::regex(" +# .*"), "");
  };
  EXPECT_EQ(values(again.out), values(yaml));
  const std::string start = testing::read_file(folder_.run_folder("a") + "/start.txt");
  for (const char* part :
       {"linear_fc1", "optimizer moments", "buffers:\n", "layers.1.mlp", "gemm: BF16: OpenBLAS\n"})
    TE_EXPECT_CONTAINS(start, part);
}

}  // namespace
}  // namespace te::train
