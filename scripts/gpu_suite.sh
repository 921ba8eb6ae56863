#!/usr/bin/env bash
# Runs all GPU tests on one, two and four GPUs, and records the result in docs/results/gpu_suite.md. CI has no GPU, so
# this table shows which commit last passed, and on which GPU. Exits with a nonzero code if a test fails.
#
#   scripts/gpu_suite.sh [--jobs N] [--commit HASH] [--no-build] [--no-record]
#
#   --jobs       concurrent tests of one rank per GPU (default 6); of more ranks three run concurrently
#   --commit     commit to record (default: git's HEAD); for a copy of the checkout without .git
#   --no-build   use build/cuda without building
#   --no-record  do not change docs/results/gpu_suite.md
#
# One-GPU tests are distributed over all GPUs of the machine, tests of two and four ranks over disjoint sets of GPUs,
# all concurrently; then those that measure a GPU's free memory or rates, which others change. A test that did not run
# counts as failed.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

record=docs/results/gpu_suite.md
alone='ModelGpu\.StepsAllocateNoDeviceMemory|MeasuredRatesGpu\.IsNearTheDatasheet'
header='| date | commit | GPUs | driver | one GPU | two GPUs | four GPUs |'

# usage: the comment at the top of this file.
usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; }

# gpu_tests ARGUMENT...: runs ctest for tests with the label gpu, with further arguments.
gpu_tests() { ctest --test-dir build/cuda -L '^gpu$' "$@" </dev/null; }

# choose RANKS [EXCLUDED]: sets `choice` to the ctest arguments that select tests of so many ranks; of one rank without
# those that match a regular expression.
choose() {
  if [[ $1 -eq 1 ]]; then
    choice=(-E "\\.np[0-9]*[02-9]\$${2:+|$2}" -j "$jobs")
  else
    choice=(-R "\\.np$1\$" -j "$((3 * $1))")  # a test takes as many slots as it has ranks
  fi
}

# start_part RANKS: starts the tests of so many ranks on all disjoint sets of GPUs; logs are in $logs. The ctests start
# one after the other, since each writes the lists of the executables' tests, and then run concurrently.
start_part() {
  local ranks="$1" sets i choice log
  sets=$((gpus / ranks))
  choose "$ranks" "$alone"
  for ((i = 0; i < sets; i++)); do
    log="$logs/np${ranks}_$i.log"
    CUDA_VISIBLE_DEVICES="$(seq -s, $((i * ranks)) $(((i + 1) * ranks - 1)))" gpu_tests --output-on-failure "${choice[@]}" \
      -I "$((i + 1)),,$sets" >"$log" 2>&1 &
    while kill -0 $! 2>/dev/null && ! grep -qs ' Start ' "$log"; do sleep 0.2; done
  done
}

# seconds_of RANKS: prints the longest time of a part's ctests.
seconds_of() { sed -n 's/^Total Test time (real) = *\([0-9]*\).*/\1/p' "$logs/np$1"_*.log | sort -n | tail -n 1; }

# results RANKS WORD: prints the lines of a part's tests with this result.
results() { cat "$logs/np$1"_*.log | grep -E "^ *[0-9]+/[0-9]+ Test .*$2" || true; }

# result_of RANKS: sets `cell` to the table cell of a part, with the names of failed tests. Adds to main's counters.
result_of() {
  local ranks="$1" passed bad skipped listed names choice
  if [[ $gpus -lt $ranks ]]; then
    cell="not run"
    return
  fi
  choose "$ranks"
  listed="$(gpu_tests -N "${choice[@]}" | sed -n 's/^Total Tests: //p')"
  passed="$(results "$ranks" ' Passed ' | wc -l)"
  skipped="$(results "$ranks" '\*\*\*Skipped' | wc -l)"
  bad=$((listed - passed - skipped))
  names="$(results "$ranks" '\*\*\*(Failed|Timeout|Exception|Not Run)' | sed -E 's/.*Test +#[0-9]+: ([^ ]+) .*/\1/' | paste -sd' ')"
  failed=$((failed + bad)) total=$((total + passed))
  cell="$passed passed, $bad failed${names:+ ($names)}, $skipped skipped, $(seconds_of "$ranks") s"
}

main() {
  local commit="" build=1 recorded=1 jobs=6 gpus logs ranks failed=0 total=0 cell row driver
  while [[ $# -gt 0 ]]; do
    case "$1" in
      --jobs) needs "a number" "$@" && jobs="$2" && shift ;;
      --commit) needs "a hash" "$@" && commit="$2" && shift ;;
      --no-build) build=0 ;;
      --no-record) recorded=0 ;;
      -h | --help) usage && exit 0 ;;
      *) refuse "unknown option $1; see --help" ;;
    esac
    shift
  done
  cd "$TE_ROOT"
  has_gpu 8.0 || die "no GPU of compute capability 8.0 or newer found (nvidia-smi); these tests need one"
  gpus="$(nvidia-smi -L | wc -l)"
  commit="${commit:-$(checkout_commit)}" || die "this copy of the checkout has no .git; name its commit with --commit"
  driver="$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | sed -n 1p)"
  if [[ $build -eq 1 ]]; then
    configure_preset cuda
    build_preset cuda
  fi
  logs="$TE_LOGS/gpu_suite"
  rm -rf "$logs" && mkdir -p "$logs"
  export OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive OPENBLAS_NUM_THREADS=1
  row="| $(date +%F) | $commit | $gpus x $(nvidia-smi --query-gpu=name --format=csv,noheader | sed -n 1p) | $driver |"
  for ranks in 4 2 1; do
    if [[ $gpus -ge $ranks ]]; then start_part "$ranks"; fi
  done
  wait || true
  gpu_tests --output-on-failure -R "$alone" >"$logs/np1_alone.log" 2>&1 || true
  for ranks in 1 2 4; do
    result_of "$ranks"
    say "$ranks GPUs: $cell"
    row+=" $cell |"
  done
  [[ $total -gt 0 ]] || die "no test ran; logs: $logs"
  if [[ $recorded -eq 1 ]]; then add_row $record "$header" "$row"; fi
  [[ $failed -eq 0 ]] || die "tests failed; logs: $logs"
}

main "$@"
