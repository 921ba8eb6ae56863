// The command line of te-train: output without training, and errors.
#include <sys/stat.h>

#include <regex>

#include "core/cpu_threads.h"
#include "core/json.h"
#include "te_train_testing.h"

namespace te {
namespace {

using testing::expect_refused;
using testing::read_file;
using testing::Result;
using testing::TrainFolder;
using testing::write_file;

class CommandLine : public ::testing::Test {
 protected:
  TrainFolder folder_;
};

TEST_F(CommandLine, HelpNamesOptionsAndExitCodes) {
  const Result result = folder_.run_raw("--help");
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.error, "");
  for (const char* part : {"--config", "--set", "--dry-run", "--print-config", "130 interrupted"})
    TE_EXPECT_CONTAINS(result.out, part);
  const Result keys = folder_.run_raw("--describe-keys");
  EXPECT_EQ(keys.code, 0);
  TE_EXPECT_CONTAINS(keys.out, "training.micro_batch_size");
  TE_EXPECT_CONTAINS(keys.out, "integer: 1 to ");
}

TEST_F(CommandLine, UnknownArgumentsGetSuggestions) {
  const std::string yaml = folder_ / "base.yaml";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {yaml, "unknown argument " + yaml + "; did you mean --config " + yaml + "?"},
      {"preset:gpt2", "did you mean --config preset:gpt2?"},
      {"--config " + yaml + " --dryrun", "unknown option --dryrun; did you mean --dry-run?"},
      {"--dry_run --config " + yaml, "did you mean --dry-run?"},
      {"--resume", "--set checkpoint.resume=auto"},
      {"--config " + yaml + " --lr=1e-3", "unknown option --lr; did you mean --set optimizer.lr=VALUE?"},
      {"--max-steps 3", "did you mean --set training.train_steps=VALUE?"},
      {"inspect", "did you mean 'inspect-fp8'?"},
      {"--batches 3", "it is an option of te-train inspect-fp8"},
      {"--config " + yaml + " inspect-fp8 --checkpoint x",
       "--config before inspect-fp8 has no effect; leave it out"},
      {"inspect-fp8 --checkpont x", "did you mean --checkpoint?"},
      {"--frobnicate", "unknown option --frobnicate; see te-train --help"}};
  for (const auto& [arguments, part] : cases) expect_refused(folder_.run_raw(arguments), part);
}

TEST_F(CommandLine, PrintedConfigIsTheSameConfig) {
  const Result first =
      folder_.run_raw("--config " + (folder_ / "base.yaml") +
                      " --print-config --set precision.fp8=hybrid --set optimizer.lr=1.7e-3");
  EXPECT_EQ(first.code, 0) << first.error;
  TE_EXPECT_CONTAINS(first.out, "lr: 0.0017 ");
  TE_EXPECT_CONTAINS(first.out, "# --set\n");
  TE_EXPECT_CONTAINS(first.out, "# " + (folder_ / "base.yaml") + ":1\n");
  folder_.write_config("again", first.out);
  const Result second = folder_.run_raw("--config " + (folder_ / "again.yaml") + " --print-config");
  EXPECT_EQ(second.code, 0) << second.error;
  const auto values = [](const std::string& text) {
    return std::regex_replace(text, std::regex(" +# .*"), "");
  };
  EXPECT_EQ(values(second.out), values(first.out));
}

TEST_F(CommandLine, SeveralConfigsAreMergedInOrder) {
  folder_.write_config("fp8", "precision: {fp8: hybrid}\ntraining: {train_steps: 3}\n");
  const std::string base = "--config " + (folder_ / "base.yaml"), fp8 = " --config " + (folder_ / "fp8.yaml");
  const Result both = folder_.run_raw(base + fp8 + " --set training.train_steps=2 --print-config");
  EXPECT_EQ(both.code, 0) << both.error;
  TE_EXPECT_CONTAINS(both.out, "# " + (folder_ / "fp8.yaml") + ":1\n");
  TE_EXPECT_CONTAINS(both.out, "  train_steps: 2 ");
  TE_EXPECT_CONTAINS(both.out, "  directory: \"runs/base+fp8\" ");
  // Checkpoints and run.json store the effective config.
  const Result run = folder_.run_raw(base + fp8 + " --set logging.directory=" + folder_.run_folder("a"));
  ASSERT_EQ(run.code, 0) << run.error;
  const auto record = parse_json(read_file(folder_.run_folder("a") + "/run.json"));
  EXPECT_EQ(record.at("config").at("precision.fp8"), "hybrid");
  EXPECT_EQ(record.at("config").at("training.train_steps"), "3");
}

TEST_F(CommandLine, PresetsAreListedAndTrained) {
  const Result list = folder_.run_raw("--list-presets");
  EXPECT_EQ(list.code, 0) << list.error;
  TE_EXPECT_CONTAINS(list.out, "8030261248");
  expect_refused(folder_.run_raw("--config preset:lama3_8b"), "'llama3_8b'");
  const Result shape = folder_.run_raw("--config preset:gpt2 --config " + (folder_ / "base.yaml") +
                                       " --set model.family=gpt --print-config");
  EXPECT_EQ(shape.code, 0) << shape.error;
  TE_EXPECT_CONTAINS(shape.out, "# default: seq_length\n");
}

// GNU OpenMP prints the variables that it has read: threads do not spin unless the user asks for it.
TEST_F(CommandLine, WaitingThreadsSleepUnlessTheUserSaysOtherwise) {
  const std::string show = "unset OMP_WAIT_POLICY GOMP_SPINCOUNT; export OMP_DISPLAY_ENV=verbose; ";
  const Result chosen = folder_.wait(folder_.start_raw("--help", show));
  EXPECT_EQ(chosen.code, 0);
  TE_EXPECT_CONTAINS(chosen.out, "--dry-run");  // the arguments are still there
  TE_EXPECT_CONTAINS(chosen.error, "GOMP_SPINCOUNT = '0'");
  TE_EXPECT_CONTAINS(folder_.wait(folder_.start_raw("--help", show + "GOMP_SPINCOUNT=77")).error,
                     "GOMP_SPINCOUNT = '77'");
  const std::string active = folder_.wait(folder_.start_raw("--help", show + "OMP_WAIT_POLICY=active")).error;
  EXPECT_EQ(active.find("GOMP_SPINCOUNT = '0'"), std::string::npos) << active;
  TE_EXPECT_CONTAINS(active, "OMP_WAIT_POLICY = 'ACTIVE'");
}

// With an affinity mask of one CPU, OpenMP must use one thread; the device line shows the number.
TEST_F(CommandLine, UsesAThreadForEachUsableCpu) {
  const std::string arguments = "--dry-run --config " + (folder_ / "base.yaml");
  TE_EXPECT_CONTAINS(folder_.wait(folder_.start_raw(arguments, "TEST_THREADS=3;")).out, ", 3 threads");
  const std::string cpu = std::to_string(read_cpu_limits().cpus.back());
  const std::string command =
      "env -u OMP_NUM_THREADS taskset -c " + cpu + " " TE_TRAIN_EXECUTABLE " " + arguments;
  ASSERT_EQ(std::system((command + " >" + (folder_ / "bound")).c_str()), 0);
  TE_EXPECT_CONTAINS(read_file(folder_ / "bound"), ", 1 threads");
}

// 7 billion parameters need about 130 GiB to train; a dry run only counts them.
TEST_F(CommandLine, DryRunPlansALargeModelWithoutItsMemory) {
  const Result result =
      folder_.run_raw("--config " TE_SOURCE_DIR "/configs/llama7b_fp8.yaml --dry-run --verbose");
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_EQ(result.error, "");
  TE_EXPECT_CONTAINS(result.out, "6,738,415,616");  // Llama-2 7B's count
  TE_EXPECT_CONTAINS(result.out, "layers.31.mlp.linear_fc2");
  TE_EXPECT_CONTAINS(result.out, "optimizer moments");
  EXPECT_LT(result.peak_bytes, int64_t{1} << 30);
  EXPECT_FALSE(std::filesystem::exists("runs/llama7b_fp8"));
}

// Dry runs of multi-GPU configs show their number of ranks, and which numbers are those of the whole model.
TEST_F(CommandLine, DryRunUsesTheRanksOfTheConfig) {
  const auto dry = [&](const std::string& arguments) {
    const Result result = folder_.run_raw("--dry-run --config " TE_SOURCE_DIR "/configs/" + arguments);
    EXPECT_EQ(result.code, 0) << result.error;
    return result.out;
  };
  const std::string one_host = dry("llama3.1_8b_fp8.yaml");
  TE_EXPECT_CONTAINS(one_host, "planning for 4 ranks, as the config says (parallel.ranks)");
  TE_EXPECT_CONTAINS(one_host, "85.63 GiB");  // README
  EXPECT_EQ(one_host.find("on this rank"), std::string::npos) << one_host;
  const std::string pipeline = dry("llama3.1_70b_fp8.yaml");
  for (const char* part : {"rank 16 of 32 ranks", "95.00 GiB", "80.98 GiB",
                           "70,553,706,496 parameters (8,819,703,808 on this rank): "})
    TE_EXPECT_CONTAINS(pipeline, part);
  TE_EXPECT_CONTAINS(dry("llama3.1_8b_fp8.yaml --ranks 1"), "144.97 GiB");
  // Without parallel.ranks: the minimum that the layout needs.
  const std::string few = dry("llama7b_fp8.yaml --set parallel.tensor=2");
  TE_EXPECT_CONTAINS(few, "planning for 2 ranks, the minimum of the layout");
  TE_EXPECT_CONTAINS(few, "6,738,415,616 parameters (");
}

TEST_F(CommandLine, NotesADifferentNumberOfRanks) {
  const Result other = folder_.run("a", {"parallel.ranks=2"});
  EXPECT_EQ(other.code, 0) << other.error;
  TE_EXPECT_CONTAINS(other.out, "the config is for 2 ranks (parallel.ranks), but this job has 1");
  const Result same = folder_.run("b", {"parallel.ranks=1"});
  EXPECT_EQ(same.out.find("but this job has"), std::string::npos) << same.out;
}

// A petabyte does not fit on any machine.
TEST_F(CommandLine, PlanThatDoesNotFitIsRefusedWithSuggestions) {
  const std::vector<std::string> large = {"model.hidden_size=1000000", "model.ffn_hidden_size=1000000",
                                          "model.num_layers=20", "model.kv_channels=8"};
  const Result run = folder_.run("a", large);
  expect_refused(run, "the memory plan needs ");
  TE_EXPECT_CONTAINS(run.error, "optimizer.exp_avg_dtype and exp_avg_sq_dtype: bf16 or fp8");
  TE_EXPECT_CONTAINS(run.error, "parallel.tensor");
  const auto dry = [&](const std::string& device) {
    std::string arguments =
        "--dry-run --config " + (folder_ / "base.yaml") + " --set training.device=" + device;
    for (const std::string& item : large) arguments += " --set " + item;
    return folder_.run_raw(arguments);
  };
  expect_refused(dry("cpu"), "the memory plan needs ");
  // The plan may be for another machine.
  const Result other = dry("auto");
  if (other.code == 0) {
    TE_EXPECT_CONTAINS(other.out, "it does not fit in the memory of this machine's CPU");
  }
}

TEST_F(CommandLine, NotesUnusualSettings) {
  const Result result =
      folder_.run_raw("--dry-run --config " + (folder_ / "base.yaml") + " --set optimizer.warmup_steps=12");
  EXPECT_EQ(result.code, 0) << result.error;
  TE_EXPECT_CONTAINS(result.out,
                     "optimizer.warmup_steps (12) is above training.train_steps (6): the run ends within "
                     "the warmup, at a learning rate of 0.0025");
  // An FP8 run without FP8 steps, and a guard with nothing to compare.
  const auto dry = [&](const std::string& sets) {
    const Result found = folder_.run_raw("--dry-run --config " + (folder_ / "base.yaml") +
                                         " --set precision.fp8=hybrid " + sets);
    EXPECT_EQ(found.code, 0) << found.error;
    return found.out;
  };
  const std::string bf16 = "note: precision.fp8 is hybrid, but nothing runs in FP8";
  TE_EXPECT_CONTAINS(dry("--set precision.first_layers_bf16=2"), bf16);
  TE_EXPECT_CONTAINS(dry("--set 'precision.overrides=fprop, dgrad, wgrad: bf16'"), bf16);
  EXPECT_EQ(dry("--set precision.first_layers_bf16=1").find("note:"), std::string::npos);
  TE_EXPECT_CONTAINS(dry("--set precision.fp8_from_step=7"), "is above training.train_steps (6): no step");
  const std::string guard = "leaves no step of this run to compare";
  TE_EXPECT_CONTAINS(dry("--set guard.every=5 --set guard.compare_steps=2"), guard);
  TE_EXPECT_CONTAINS(dry("--set guard.every=2 --set guard.compare_steps=1 --set precision.fp8_until_step=2"),
                     guard);
  EXPECT_EQ(dry("--set guard.every=5 --set guard.compare_steps=1").find(guard), std::string::npos);
}

TEST_F(CommandLine, NumbersOutOfRange) {
  for (const char* ranks : {"0", "-3", "1048577", "99999999999"}) {
    expect_refused(folder_.run_raw("--dry-run --config " + (folder_ / "base.yaml") + " --ranks " + ranks),
                   std::string("--ranks ") + ranks + ": must be 1 to 1048576; see te-train --help");
  }
}

// mpirun sets the ranks of a run: one rank cannot train a layout of four.
TEST_F(CommandLine, RanksOptionIsForDryRunsOnly) {
  expect_refused(folder_.run_raw("--config " + (folder_ / "base.yaml") + " --ranks 4"),
                 "--ranks needs --dry-run or --print-schedule");
  for (const char* own : {"--dry-run", "--dry-run --ranks 2", "--print-schedule"})
    expect_refused(folder_.run_raw("--config " + (folder_ / "base.yaml") + " --plan 4 " + own),
                   "--plan N shows layouts for N GPUs");
  expect_refused(folder_.run_raw("--config " + (folder_ / "base.yaml") + " --plan 4 --print-config"),
                 "--plan and --print-config print different things and stop; give one of them");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "runs"));
}

// Output to a closed file descriptor must not end up in the first file that is opened.
TEST_F(CommandLine, AClosedConsoleLeavesTheLogsAlone) {
  for (const char* name : {"stdout", "stderr"}) write_file(folder_ / name, "");
  const Result result = folder_.run_raw("--config " + (folder_ / "base.yaml") + " --set logging.directory=" +
                                        folder_.run_folder("a") + " >&- 2>&- #");
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(folder_.column("a", "step"), (std::vector<double>{1, 2, 3, 4, 5, 6}));
}

// Lost output is an error if it is the result of the command; the results of a run are files.
TEST_F(CommandLine, LostOutputIsNoSuccess) {
  write_file(folder_ / "stdout", "");
  const auto run = [&](const std::string& arguments) {
    return folder_.run_raw("--config " + (folder_ / "base.yaml") + arguments + " >/dev/full 2>" +
                           (folder_ / "stderr") + " #");
  };
  for (const char* what : {" --dry-run", " --print-config", " --print-schedule", " --describe-keys",
                           " --help", " --completion bash", " --list-presets"})
    expect_refused(run(what), "standard output could not be written and is incomplete: ");
  const Result result = run(" --set logging.directory=" + folder_.run_folder("a"));
  EXPECT_EQ(result.code, 0);
  TE_EXPECT_CONTAINS(result.error, "te-train: warning: standard output is incomplete");
  EXPECT_EQ(folder_.column("a", "step"), (std::vector<double>{1, 2, 3, 4, 5, 6}));
}

// OpenBLAS retries forever if a limit of the process denies it memory.
TEST_F(CommandLine, AddressSpaceLimitIsReported) {
  if (testing::kSanitized) GTEST_SKIP() << "a sanitizer maps terabytes";
  // The smallest limit, in KiB, under which the loader can map the program's libraries (CUDA's need gigabytes). It
  // leaves less than OpenBLAS's first buffer.
  const auto limited = [&](int limit) {
    return folder_.run("a", {}, "base", fmt::format("ulimit -v {};", limit));
  };
  int limit = 100000;
  while (limit < 4000000 && limited(limit).code == 127) limit += 100000;
  expect_refused(limited(limit), "(ulimit -v, ulimit -d)");
  EXPECT_EQ(folder_.run("a", {}, "base", "ulimit -v 4000000;").code, 0);
  // Between these limits a run is refused or ends, although threads that save allocate before OpenBLAS has its buffers.
  bool refused = true;
  for (int more = 0; more <= 400000; more += 16000) {
    const Result result = folder_.run(
        fmt::format("more_{}", more),
        {"precision.fp8=hybrid", "model.ffn_hidden_size=64", "model.seq_length=32", "training.train_steps=20",
         "training.eval_interval=1", "training.eval_microbatches=4", "checkpoint.save_every=1"},
        "base", fmt::format("ulimit -t 10; ulimit -v {}; TEST_THREADS=2;", limit + more));
    refused = refused && result.code == 2;
    EXPECT_EQ(result.code, refused ? 2 : 0) << limit + more << " KiB: " << result.error;
  }
}

TEST_F(CommandLine, AnEndlessConfigIsRefused) {
  expect_refused(folder_.run_raw("--dry-run --config /dev/zero"),
                 "/dev/zero: cannot open the configuration file: is larger than 8 MiB");
  ASSERT_EQ(::mkfifo((folder_ / "pipe.yaml").c_str(), 0600), 0);
  folder_.write_config("extends", "extends: pipe.yaml\n");
  expect_refused(folder_.run_raw("--dry-run --config " + (folder_ / "extends.yaml")),
                 "pipe.yaml: cannot open the configuration file: is a pipe, not a regular file");
  // A pipe as a command-line argument is read.
  EXPECT_EQ(folder_.run_raw("--dry-run --config /dev/stdin <" + (folder_ / "base.yaml")).code, 0);
  const Result piped = folder_.wait(
      folder_.start_raw("--dry-run --config /dev/stdin", "cat " + (folder_ / "base.yaml") + " |"));
  EXPECT_EQ(piped.code, 0) << piped.error;
}

TEST_F(CommandLine, DryRunWritesNoFiles) {
  EXPECT_EQ(folder_.run_raw("--dry-run --config " + (folder_ / "base.yaml")).code, 0);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "runs"));
}

// Errors, logs and tables quote names and texts of files.
TEST_F(CommandLine, OutputHasNoTerminalEscapesOfNames) {
  const Result refused = folder_.run_raw("--config '" + (folder_ / "\x1b[2J.yaml") + "'");
  expect_refused(refused, "\\x1b[2J.yaml: cannot open");
  const Result result = folder_.run(
      "a\x1b"
      "c",
      {"training.train_steps=2", "data.train=" + (folder_ / "train")});
  EXPECT_EQ(result.code, 0) << result.error;
  TE_EXPECT_CONTAINS(result.out, "runs/a\\x1bc");
  for (const std::string& text : {refused.error, result.out, result.error})
    EXPECT_EQ(text.find('\x1b'), std::string::npos) << text;
}

TEST_F(CommandLine, WrongArguments) {
  expect_refused(folder_.run_raw(""), "--config FILE is required");
  expect_refused(folder_.run_raw("--frobnicate"), "frobnicate");
  expect_refused(folder_.run_raw("--config " + (folder_ / "none.yaml")), "none.yaml");
  expect_refused(folder_.run("a", {"model.num_layer=3"}), "did you mean 'model.num_layers'?");
  expect_refused(folder_.run("a", {"training.train_steps=many"}), "training.train_steps");
  folder_.write_config("unknown", folder_.base_config() + "modle: {num_layers: 3}\n");
  expect_refused(folder_.run("a", {}, "unknown"), "unknown.yaml");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "runs"));
}

TEST_F(CommandLine, WrongData) {
  expect_refused(folder_.run("a", {"data.train=" + (folder_ / "none")}),
                 "data.train: " + (folder_ / "none.idx"));
  expect_refused(folder_.run("a", {"training.eval_interval=2", "data.valid=" + (folder_ / "none")}),
                 "none.idx: cannot be opened");
  // A truncated .bin file.
  std::filesystem::resize_file(folder_ / "train.bin", 1001);
  expect_refused(folder_.run("a"), "train.bin");
}

TEST_F(CommandLine, WrongFolders) {
  // A file instead of a folder: not even root can write into it.
  write_file(folder_ / "file", "");
  expect_refused(folder_.run_raw("--config " + (folder_ / "base.yaml") +
                                 " --set logging.directory=" + (folder_ / "file/run")),
                 "logging.directory: ");
  // Reported before the first step, not hours later at the first checkpoint.
  const Result result = folder_.run("a", {"checkpoint.directory=" + (folder_ / "file/saved")});
  expect_refused(result, "checkpoint.directory: ");
  EXPECT_EQ(result.out.find("grad norm"), std::string::npos) << result.out;
}

TEST_F(CommandLine, ADeviceThatIsNotThere) {
  ::setenv("CUDA_VISIBLE_DEVICES", "-1", 1);
  expect_refused(folder_.run("a", {"training.device=cuda"}), "device cuda");
  ::unsetenv("CUDA_VISIBLE_DEVICES");
}

}  // namespace
}  // namespace te
