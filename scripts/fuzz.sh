#!/usr/bin/env bash
# Builds the libFuzzer targets of fuzz/ with clang, AddressSanitizer and UBSan, and runs them one after the other.
#
#   scripts/fuzz.sh [--seconds N] [TARGET...]      TARGET: indexed_dataset, safetensors, ...; default: all, 120 s each
#
# New inputs are saved in build/fuzz/corpus/TARGET and reused; a failing input is written to build/fuzz/crash-*, and the
# script exits with a nonzero code. An input fails if it allocates more than 64 MiB at once or takes 10 s. Needs clang
# with libFuzzer, and libomp-dev.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# usage: the comment at the top of this file.
usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; }

# run_target NAME SECONDS: fuzzes one target, starting from its seeds and inputs of earlier runs.
run_target() {
  local corpus="$TE_ROOT/build/fuzz/corpus/$1" inputs=()
  mkdir -p "$corpus"
  if [[ -f "fuzz/$1.dict" ]]; then inputs+=("-dict=fuzz/$1.dict"); fi
  inputs+=("$corpus")
  if [[ -d "fuzz/seeds/$1" ]]; then inputs+=("fuzz/seeds/$1"); fi
  say "fuzzing $1 for $2 s"
  "build/fuzz/fuzz/fuzz_$1" -max_total_time="$2" -timeout=10 -malloc_limit_mb=64 -print_final_stats=1 \
    -artifact_prefix="$TE_ROOT/build/fuzz/" "${inputs[@]}" 2>&1 |
    tee "$TE_LOGS/fuzz_$1.log" |
    grep -E '^(Done|==|SUMMARY|stat::(number|average|peak))|^#[0-9]+[[:space:]]DONE|ERROR|Test unit written|runtime error'
}

main() {
  local seconds=120 targets=() source
  while [[ $# -gt 0 ]]; do
    case "$1" in
      --seconds) needs "a number" "$@" && seconds="$2" && shift ;;
      -h | --help) usage && exit 0 ;;
      -*) refuse "unknown option $1; see --help" ;;
      *) targets+=("$1") ;;
    esac
    shift
  done
  command -v clang++ >/dev/null || die "clang++ not found; install clang and libomp-dev"
  cd "$TE_ROOT"
  if [[ ${#targets[@]} -eq 0 ]]; then
    for source in fuzz/*_fuzz.cpp; do targets+=("$(basename "$source" _fuzz.cpp)"); done
  fi
  configure_preset fuzz
  build_preset fuzz "${targets[@]/#/fuzz_}"
  for source in "${targets[@]}"; do run_target "$source" "$seconds"; done
}

main "$@"
