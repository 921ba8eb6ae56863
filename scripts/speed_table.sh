#!/usr/bin/env bash
# Measures the speed table of the README in one session on two or four GPUs of one host, and writes
# docs/results/speed.json, from which scripts/results_summary.py makes the tables. Takes about ten minutes. Needs a build
# of the preset cuda.
#
#   scripts/speed_table.sh [--commit HASH] [--out FOLDER] [--only REGEX] [--no-record]
#
#   --commit     commit to record (default: git's HEAD); for a copy of the checkout without .git
#   --out        folder for the reports (default build/speed_table); rows in it that are not measured again are kept
#   --only       run only rows whose name matches: one_gpu, 8b_dp, 7b_dp, 7b_zero3, 7b_tp, layer_70b, fsdp2; on four
#                GPUs also 7b_pp, 7b_tp_pp, 8b_context, 8b_context_long
#   --no-record  do not change docs/results/speed.json
#
# Rows of one GPU run on two GPUs at the same time, each with PyTorch after it on the same GPU. Rows of several GPUs
# follow one by one, on four GPUs if there are four; scripts/peers/speed_rows.py has their place in the table. A table
# (one GPU, several GPUs, a layer) of which nothing is measured stays as it is. Llama 2 7B on one GPU and Llama 3.1 8B
# on two need more than 80 GB.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# usage: the comment at the top of this file.
usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; }

# chosen NAME: true if --only selects this row.
chosen() { [[ "$1" =~ $only ]]; }

# models_on GPU MODEL...: te-train and PyTorch for each model, one after another on one GPU. Uses main's variables.
models_on() {
  local gpu="$1" model
  local -x TE_7B_SETS="training.recompute=selective training.micro_batch_size=2 training.global_batch_size=16"
  shift
  for model in "$@"; do
    mkdir -p "$out/$model"
    CUDA_VISIBLE_DEVICES=$gpu scripts/bench_peers.sh --only "train-$model" --out "$out/$model" >"$out/$model.log" 2>&1 ||
      say "  failed; see $out/$model.log" >&2
  done
}

# one_gpu: the rows of one GPU, on two GPUs at the same time.
one_gpu() {
  local memory
  chosen one_gpu || return 0
  say "one_gpu"
  memory="$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits | sed -n 1p)"
  # The smallest model first: its short steps suffer while PyTorch compiles for the other GPU.
  interruptible models_on 0 gpt2_124m llama_1b &
  if ((memory > 130000)); then models_on 1 llama2_7b; fi  # MiB
  wait
}

# several_gpus NAME COMMAND ARGUMENT...: runs te-bench on all ranks, with the report in NAME.json. Uses main's
# variables.
several_gpus() {
  local name="$1"
  shift
  chosen "$name" || return 0
  say "$name"
  mpirun -n "$ranks" --bind-to none build/cuda/apps/te-bench "$@" --json "$out/$name.json" >"$out/$name.log" 2>&1 ||
    say "  failed: $(tail -n 1 "$out/$name.log")"
}

# four_gpus: the layouts that are measured on four GPUs only. Uses main's variables.
four_gpus() {
  several_gpus 7b_pp step --config configs/llama7b_fp8.yaml --steps 3 --set "$batch=128" --set parallel.pipeline=4 \
    --set parallel.schedule=zero_bubble --set training.recompute=none
  several_gpus 7b_tp_pp step --config configs/llama7b_fp8.yaml --steps 3 --set "$batch=64" --set parallel.tensor=2 \
    --set parallel.sequence=true --set parallel.tensor_overlap=2 --set parallel.pipeline=2 \
    --set parallel.schedule=zero_bubble --set training.recompute=none
  several_gpus 8b_context step --config configs/llama3.1_8b_fp8.yaml --steps 3 --set "$batch=4" \
    --set model.seq_length=32768 --set parallel.context=4 --set parallel.shard=parameters
  several_gpus 8b_context_long step --config configs/llama3.1_8b_fp8.yaml --steps 1 --set "$batch=2" \
    --set model.seq_length=131072 --set parallel.context=4 --set parallel.shard=parameters --set training.recompute=full
}

# fsdp2: PyTorch FSDP2 with the Llama 2 7B model in both precisions.
fsdp2() {
  local python fp8
  chosen fsdp2 || return 0
  say "fsdp2"
  python="$(python_with torch)" || { say "  skipped: no Python with PyTorch found" && return 0; }
  for fp8 in "" --fp8; do
    "$python" -m torch.distributed.run --standalone --nproc-per-node "$ranks" scripts/peers/torch_baseline.py \
      train --model llama2_7b --steps 6 ${fp8:+"$fp8"} 2>>"$out/fsdp2.log" || say "  failed; see $out/fsdp2.log" >&2
  done >"$out/fsdp2.jsonl"
}

main() {
  local commit="" out=build/speed_table only=. recorded=1 python batch ranks
  while [[ $# -gt 0 ]]; do
    case "$1" in
      --commit) needs "a hash" "$@" && commit="$2" && shift ;;
      --out) needs "a folder" "$@" && out="$2" && shift ;;
      --only) needs "a regular expression" "$@" && only="$2" && shift ;;
      --no-record) recorded=0 ;;
      -h | --help) usage && exit 0 ;;
      *) refuse "unknown option $1; see --help" ;;
    esac
    shift
  done
  cd "$TE_ROOT"
  [[ -x build/cuda/apps/te-bench ]] || die "build/cuda/apps/te-bench: not found; build it (cmake --build --preset cuda)"
  ranks="$(nvidia-smi -L 2>/dev/null | wc -l)"
  [[ $ranks -ge 2 ]] || die "two or four GPUs are needed (nvidia-smi -L)"
  ranks=$((ranks < 4 ? 2 : 4))
  python="$(python_with json)" || die "no Python 3 found; install python3"
  commit="${commit:-$(checkout_commit)}" || die "this copy of the checkout has no .git; name its commit with --commit"
  mkdir -p "$out"
  one_gpu
  batch=training.global_batch_size
  several_gpus 8b_dp step --config configs/llama3.1_8b_bf16.yaml --config configs/llama3.1_8b_fp8.yaml --steps 3 \
    --set "$batch=$((8 * ranks))"
  several_gpus 7b_dp step --config configs/llama7b_bf16.yaml --config configs/llama7b_fp8.yaml --steps 3 \
    --set "$batch=$((16 * ranks))"
  several_gpus 7b_zero3 step --config configs/llama7b_fp8.yaml --steps 3 --set "$batch=$((16 * ranks))" \
    --set parallel.shard=parameters
  several_gpus 7b_tp step --config configs/llama7b_fp8.yaml --steps 3 --set "$batch=$((16 * ranks))" \
    --set "parallel.tensor=$ranks" --set parallel.sequence=true --set "parallel.tensor_overlap=$ranks" \
    --set "training.micro_batch_size=$((2 * ranks))" --set training.recompute=none
  if ((ranks == 4)); then four_gpus; fi
  several_gpus layer_70b layer --config configs/llama3.1_70b_fp8.yaml --set "parallel.tensor=$ranks"
  fsdp2
  if [[ $recorded -eq 1 ]]; then "$python" scripts/peers/speed_rows.py "$out" --ranks "$ranks" --commit "$commit"; fi
}

main "$@"
