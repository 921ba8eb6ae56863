#!/usr/bin/env bash
# Runs te-bench and peers (such as PyTorch) one after another on this machine's GPU, and prints a table with the ratios.
# Times of different calls, machines or days are not comparable, because clocks and temperatures differ.
#
#   scripts/bench_peers.sh [--peer NAME=COMMAND]... [--only REGEX] [--steps N] [--tune] [--out FOLDER] [--bench PROGRAM]
#
#   --peer   a program with the command line and the JSON lines of scripts/peers/torch_baseline.py; may be repeated.
#            Default: torch=python3 scripts/peers/torch_baseline.py, if a Python has PyTorch with CUDA
#   --only   run only rows whose name matches: layer-gpt, layer-llama7b, train-llama2_7b, train-llama_1b,
#            train-gpt2_124m
#   --steps  number of timed training steps (default 10; 4 for the 7B model)
#   --out    folder for the reports (default build/bench_peers)
#   --tune   te-bench first searches for GEMM algorithms, which takes minutes once per GPU model
#   --bench  te-bench executable (default build/cuda/apps/te-bench)
#
# TE_7B_SETS has the overrides for the 7B model: the config's batch does not fit into the memory of one GPU.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

ROWS=(layer-gpt layer-llama7b train-gpt2_124m train-llama_1b train-llama2_7b)
TE_7B_SETS="${TE_7B_SETS:-training.recompute=selective training.micro_batch_size=2 training.global_batch_size=32}"

# usage: the comment at the top of this file.
usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; }

# bench_layer WHICH: runs te-bench for a layer in both precisions.
bench_layer() { "$BENCH" layer --which "$1" "${TUNE[@]}" --json "$OUT/te_layer-$1.json"; }

# bench_train MODEL CONFIG STEPS SET...: runs te-bench for a model in both precisions.
bench_train() {
  local model="$1" config="$2" steps="$3" sets=() set
  shift 3
  for set in "$@"; do sets+=(--set "$set"); done
  "$BENCH" step --config "configs/${config}_bf16.yaml" --config "configs/${config}_fp8.yaml" --steps "$steps" \
    "${sets[@]}" "${TUNE[@]}" --json "$OUT/te_train-$model.json"
}

# bench_te ROW: runs te-bench for a row of the table.
bench_te() {
  local sets
  case "$1" in
    layer-*) bench_layer "${1#layer-}" ;;
    train-gpt2_124m) bench_train gpt2_124m gpt2_124m "$STEPS" training.global_batch_size=64 ;;
    train-llama_1b) bench_train llama_1b llama_1b "$STEPS" training.global_batch_size=64 ;;
    train-llama2_7b)
      read -r -a sets <<<"$TE_7B_SETS"
      bench_train llama2_7b llama7b "$((STEPS < 4 ? STEPS : 4))" "${sets[@]}"
      ;;
  esac
}

# bench_peer COMMAND ROW: runs a peer for a row, with JSON lines on stdout.
bench_peer() {
  local command arguments fp8
  read -r -a command <<<"$1"
  case "$2" in
    layer-*) arguments=(layer --which "${2#layer-}") ;;
    train-*) arguments=(train --model "${2#train-}" --steps "$STEPS") ;;
  esac
  for fp8 in "" --fp8; do
    "${command[@]}" "${arguments[@]}" ${fp8:+"$fp8"} || say "  $1 ${arguments[*]} $fp8: failed" >&2
  done
}

# default_peer: prints "torch=COMMAND", or nothing and a message on stderr.
default_peer() {
  local python
  if ! python="$(python_with torch)"; then
    say "no Python with PyTorch found; only te-train is measured (pip install torch, or name a peer with --peer)" >&2
  elif ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    say "PyTorch of $python finds no CUDA device; only te-train is measured" >&2
  else
    echo "torch=$python scripts/peers/torch_baseline.py"
  fi
}

main() {
  local peers=() only=. row peer name python
  cd "$TE_ROOT"
  STEPS=10 OUT=build/bench_peers BENCH=build/cuda/apps/te-bench TUNE=()
  while [[ $# -gt 0 ]]; do
    case "$1" in
      --peer) needs "NAME=COMMAND" "$@" && peers+=("$2") && shift ;;
      --only) needs "a regular expression" "$@" && only="$2" && shift ;;
      --steps) needs "a number" "$@" && STEPS="$2" && shift ;;
      --out) needs "a folder" "$@" && OUT="$2" && shift ;;
      --tune) TUNE=(--tune) ;;
      --bench) needs "a program" "$@" && BENCH="$2" && shift ;;
      -h | --help) usage && exit 0 ;;
      *) refuse "unknown option $1; see --help" ;;
    esac
    shift
  done
  [[ -x "$BENCH" ]] || die "$BENCH: not found; build it (cmake --build --preset cuda --target te-bench) or set --bench"
  python="$(python_with json)" || die "no Python 3 found; install python3 for the table"
  if [[ ${#peers[@]} -eq 0 ]]; then
    peer="$(default_peer)"
    if [[ -n "$peer" ]]; then peers=("$peer"); fi
  fi
  for peer in "${peers[@]}"; do [[ "$peer" == ?*=?* ]] || refuse "--peer $peer: must be NAME=COMMAND"; done
  mkdir -p "$OUT"
  rm -f "$OUT"/te_*.json "$OUT"/peer_*.jsonl
  for row in "${ROWS[@]}"; do
    [[ "$row" =~ $only ]] || continue
    say "$row"
    bench_te "$row" >"$OUT/te_$row.log" 2>&1 || say "  te-bench failed: $(tail -n 1 "$OUT/te_$row.log")"
    for peer in "${peers[@]}"; do
      name="${peer%%=*}"
      bench_peer "${peer#*=}" "$row" >>"$OUT/peer_$name.jsonl" 2>"$OUT/peer_${name}_$row.log" ||
        say "  $name failed; see $OUT/peer_${name}_$row.log"
    done
  done
  "$python" scripts/peers/table.py "$OUT"
}

main "$@"
