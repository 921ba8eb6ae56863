#!/usr/bin/env bash
# Builds te-train and runs its tests; ctest's summary is printed last. Exits with a nonzero code if anything fails.
#
#   scripts/test.sh [--preset cpu|cuda|asan] [--sanitize] [--label LABEL] [--filter REGEX] [--no-deps]
#
#   --preset    build preset (default: cuda if a CUDA compiler and its libraries are found, else cpu)
#   --sanitize  use the preset asan: CPU tests with AddressSanitizer and UndefinedBehaviorSanitizer, without the slowest
#   --label     run only tests with this label: cpu, gpu, train (default: all; GPU tests are skipped without a GPU)
#   --filter    run only tests whose name matches
#   --no-deps   do not check for missing dependencies
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# usage: the comment at the top of this file.
usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; }

# summarize: prints ctest's output, with the number of skipped tests instead of their list.
summarize() {
  awk '/\*\*\*Skipped/ { skipped++ }
    /^The following tests did not run/ { listing = 1 }
    /^The following tests FAILED/ { listing = 0 }
    /tests passed, .* tests failed/ && skipped { print skipped " tests skipped" }
    !listing { print; fflush() }'
}

# leave_out_gpu_tests: excludes GPU tests without starting them, and prints their number. Changes main's variables.
leave_out_gpu_tests() {
  local count
  count="$(ctest --preset "$preset" -N -L '^gpu$' </dev/null | sed -n 's/^Total Tests: //p')"
  if [[ "${count:-0}" -gt 0 ]]; then say "$count tests skipped, which need a GPU"; fi
  arguments+=(-LE '^gpu$')
}

# Tests that take more than half of the time of all under sanitizers. They repeat runs whose code other tests execute,
# too: in every layout, on two ranks, after every step, or killed at any time. --filter runs them.
slow_with_sanitizers=(
  train.hosts train.trials train.killed_again_and_again test_train_mpi.np2
  Training.OverfitsOneBatchInEveryPrecision MuonTraining.LearnsAtLeastAsFastAsAdamW
  TeExperiment.SavesOnASignalAndResumesInTheNextCall TeExperiment.ResumesAfterItOrARunIsKilled
  TeExperiment.BranchesStartFromAnotherVariantsCheckpoint TeExperiment.InterruptsAndResumesRanksUnderMpirun
  PolicyState.RollbacksAndTheLossScaleAreResumedAfterEveryStep PolicyState.SkippedSpikesAndTheGuardAreResumedAfterEveryStep
  StepPrecision.MayBeInterruptedAroundASwitchInAnyLayout StepPrecision.OutsideOfTheScheduleEqualsABf16Run
  Fp8GatherOfARun.ChangesNothingThatItWrites Offload.ChangesNoBitOfALayout
  Fp8Statistics.ChangeNoBitOfAnyLayout Fp8Statistics.ChangeNoBitOfAnyRecipe
  Guard.ObservingChangesNoBitOfAnyLayout Guard.ObservingChangesNoBitOfAnyRecipe
  Requantize.NothingSaturatesInAnyLayout KeptWeights.GiveTheSameBits Spikes.AreTheSameWithOffload
  Mpirun.RankThatHangsDuringASaveEndsTheJob Mpirun.StepLongerThanMpirunsTimeoutIsSaved
  Mpirun.SignalsThatMpirunForwardsSave Mpirun.RankThatHangsInValidationIsReported Evaluations.RunOnceAfterEachRun
  Evaluations.ContinueAfterAStopAndFailSeparately Guard.RecoversAFailingRun
  Recompute.GivesBitwiseEqualGradientsInEveryVariantOfALayer Requantize.WorksForEveryProducer
  OutputLayer.Fp8GradientsAreCloseToHighPrecision Offload.ChangesNoBitOfAnyOptimizerState
)
# Suites that plan and time the runs of other tests, again and again.
slow_suites_with_sanitizers=(Search Measured PlanCommand TeBench TeBenchComm)

# leave_out_slow_tests: excludes the tests above. Changes main's variables.
leave_out_slow_tests() {
  local pattern suites count
  pattern="^($(IFS='|' && echo "${slow_with_sanitizers[*]//./\\.}"))\$"
  suites="(^|/)($(IFS='|' && echo "${slow_suites_with_sanitizers[*]}"))\\."
  count="$(ctest --preset "$preset" -N -R "$pattern" </dev/null | sed -n 's/^Total Tests: //p')"
  [[ "$count" -eq ${#slow_with_sanitizers[@]} ]] || die "scripts/test.sh: slow_with_sanitizers names a test that does not exist"
  say "$count tests and the suites ${slow_suites_with_sanitizers[*]} skipped, which are slow with sanitizers"
  arguments+=(-E "$pattern|$suites")
}

# keep_mpi_sessions: Open MPI 4 stores files of all jobs of a user in one folder, which the last job removes. If two
# jobs create it at the same time, one of them sometimes fails ("File exists"). A subfolder keeps Open MPI from removing
# it.
keep_mpi_sessions() {
  local folder
  folder="$(OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun -n 1 printenv OMPI_MCA_orte_top_session_dir \
    2>/dev/null </dev/null)" || true
  if [[ -n "$folder" ]]; then mkdir -p "$folder/kept/for_tests" || true; fi
}

main() {
  local preset="" arguments=() deps=1 log jobs threads=1 status=0 start=$EPOCHSECONDS
  while [[ $# -gt 0 ]]; do
    case "$1" in
      --preset) needs "a name" "$@" && preset="$2" && shift ;;
      --sanitize) preset=asan ;;
      --label) needs "a label" "$@" && arguments+=(-L "^$2\$") && shift ;;
      --filter) needs "a regular expression" "$@" && arguments+=(-R "$2") && shift ;;
      --no-deps) deps=0 ;;
      -h | --help) usage && exit 0 ;;
      *) refuse "unknown option $1; see --help" ;;
    esac
    shift
  done
  cd "$TE_ROOT"
  if [[ $deps -eq 1 ]]; then
    scripts/install_deps.sh
    use_newer_tools
  fi
  if [[ -z "$preset" ]]; then preset="$(can_build_cuda && echo cuda || echo cpu)"; fi
  say "tests, preset $preset"
  configure_preset "$preset"
  build_preset "$preset"
  say "built in $(seconds_since "$start") s"
  # Several tests run concurrently with one thread each, because their models are too small for several threads. Tests
  # of kernels, which also test threading, set their own number, and CPU references of GPU tests are larger. OpenBLAS is
  # only called from OpenMP threads.
  if has_gpu 8.0; then
    threads=2
  elif [[ ${#arguments[@]} -eq 0 ]]; then
    if [[ "$preset" == asan ]]; then leave_out_slow_tests; else leave_out_gpu_tests; fi
  fi
  # One more than cores: many tests wait, for a starting job, a disk or a time limit.
  jobs=$(($(cpu_count) + 1))
  export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$threads}" OMP_WAIT_POLICY=passive OPENBLAS_NUM_THREADS=1
  keep_mpi_sessions
  log="$TE_LOGS/ctest_$preset.log"
  ctest --preset "$preset" --no-tests=error -j "$((jobs < 8 ? jobs : 8))" "${arguments[@]}" </dev/null 2>&1 |
    tee "$log" | summarize || status=$?
  exit "$status"
}

main "$@"
