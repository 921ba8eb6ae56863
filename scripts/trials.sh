#!/usr/bin/env bash
# Breaks small runs on the CPU on purpose, and checks that nothing is lost: what docs/results/conformance/faults.md lists, tried.
#
#   scripts/trials.sh [--short] [--kills N] [--ranks "1 2 4"] [--only TRIAL] [--train PATH] [--mpirun COMMAND]
#
#   kills     runs are killed with SIGKILL at random instants, N times each on 1, 2 and 4 ranks (scripts/kill_test.sh)
#   disk      the disk of the checkpoints fills up in the middle of a run, and has room again later
#   two_runs  a second run is started in the folder of one that is under way
#   signals   SIGTERM, SIGINT, SIGHUP and SIGUSR1, on 1, 2 and 4 ranks, each run resumed afterwards
#   hosts     two network namespaces as hosts: a rank dies, the cable is cut (scripts/hosts_trial.sh)
#
#   --short   for CI: 2 kills on 2 ranks, and the disk; tests/train has the rest
#   --kills   kills on each number of ranks (100)
#   --only    one trial
#   --train   the executable (build/cpu/apps/te-train)
#   --mpirun  what starts several ranks, but for their number (mpirun that binds no rank)
#
# The outcome of every trial that ends is compared with an undisturbed run, bit for bit. The disk is a tmpfs of 4 MiB, which
# needs root or user namespaces; where there is neither, the trial says so and is left out. One line per trial; exit code 1 when
# something was lost.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# usage: the comment at the top of this file.
usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; }

# write_config FILE: a Llama of two layers in FP8, on random tokens, that saves every fifth step.
write_config() {
  cat >"$1" <<'YAML'
model: {family: llama, num_layers: 2, hidden_size: 32, ffn_hidden_size: 64, num_attention_heads: 4, vocab_size: 256,
        seq_length: 16}
precision: {fp8: hybrid, amax_history_len: 4}
training: {micro_batch_size: 2, global_batch_size: 4, train_steps: 1000000, device: cpu}
optimizer: {lr: 1.0e-3, decay: constant, decay_steps: 1000000}
data: {synthetic: true}
logging: {fp8_stats_every: 0}
checkpoint: {save_every: 5, keep: 3}
YAML
}

# layout RANKS: what stands before te-train, and the keys, for so many ranks; in the arrays `launch` and `keys`.
layout() {
  launch=() keys=()
  if [[ $1 -eq 1 ]]; then return 0; fi
  launch=("${mpirun[@]}" "$1")
  keys=(--set parallel.tensor=2)
}

# command RUN [ARGUMENT]...: the command line of a run, in the array `command`.
command_of() {
  local run="$1"
  shift
  command=("${launch[@]}" "$executable" --config "$folder/trial.yaml" "${keys[@]}" --set "logging.directory=$folder/$run" "$@")
}

# run_to_end LOG RUN [ARGUMENT]...: must succeed.
run_to_end() {
  local log="$1"
  shift
  command_of "$@"
  "${command[@]}" >"$folder/$log" 2>&1 || { cat "$folder/$log" >&2 && die "failed: ${command[*]}"; }
}

# latest RUN: the step that `latest` names; 0 where there is none.
latest() {
  local name
  name="$(cat "$folder/$1/checkpoints/latest" 2>/dev/null)" || true
  if [[ "$name" =~ ^step_([0-9]+)$ ]]; then echo "$((10#${BASH_REMATCH[1]}))"; else echo 0; fi
}

# wait_until LABEL COMMAND...: until the command succeeds, for at most two minutes.
wait_until() {
  local label="$1" tick
  shift
  for ((tick = 0; tick < 2400; ++tick)); do
    if "$@"; then return 0; fi
    sleep 0.05
  done
  die "never came: $label"
}
has_saved() { [[ "$(latest "$1")" -ge "$2" ]]; }
has_steps() { [[ "$(grep -c "" "$folder/$1/loss.csv" 2>/dev/null)" -gt "$2" ]]; }
has_said() { grep -q "$2" "$folder/$1"; }

# compare RUN STEP: its checkpoint of that step is the one of an undisturbed run of the same layout, bit for bit.
compare() {
  local run="$1" step="$2" name file
  run_to_end whole.log whole_"$run" --set "training.train_steps=$step" --set checkpoint.save_every=0
  name="$(printf 'step_%08d' "$step")"
  for file in "$folder/whole_$run/checkpoints/$name"/*.safetensors; do
    cmp "$file" "$folder/$run/checkpoints/$name/$(basename "$file")" || die "$run: $(basename "$file") differs"
  done
  # All steps are in the log once, in order.
  awk -F, 'NR > 1 && $1 != NR - 1 { exit 1 }' "$folder/$run/loss.csv" || die "$run: loss.csv lacks steps"
  [[ "$(tail -n +2 "$folder/$run/loss.csv" | wc -l)" -eq "$step" ]] || die "$run: loss.csv does not end at step $step"
}

# resume RUN: five steps more, and compared.
resume() {
  local run="$1" step
  step="$(latest "$run")"
  run_to_end resume.log "$run" --set checkpoint.resume=auto --set "training.train_steps=$((step + 5))"
  has_said resume.log 'resumed from' || die "$run: found no checkpoint"
  compare "$run" "$((step + 5))"
}

trial_kills() {
  local ranks
  for ranks in "${rank_counts[@]}"; do
    layout "$ranks"
    "$TE_ROOT/scripts/kill_test.sh" "$kills" --train "$executable" ${launch:+--launch "${launch[*]}"} \
      --set model.ffn_hidden_size=64 ${launch:+--set parallel.tensor=2} | sed "s/^/kills: $ranks ranks: /"
  done
}

# trial_disk: a disk of 4 MiB that a file fills, and that is free again later.
trial_disk() {
  local disk="$folder/disk" run="full" filler process before
  mkdir "$disk"
  if ! mount -t tmpfs -o size=4m tmpfs "$disk" 2>/dev/null; then
    say "disk: LEFT OUT: a tmpfs cannot be mounted here (root, or unshare -rm, can)"
    return 0
  fi
  layout 1
  filler="$disk/filler"
  mkdir -p "$folder/$run" "$disk/checkpoints"
  ln -s "$disk/checkpoints" "$folder/$run/checkpoints"
  command_of "$run"
  "${command[@]}" >"$folder/log" 2>&1 &
  process=$!
  wait_until "a checkpoint" has_saved "$run" 5
  # Filled until nothing more fits: dd fails, as it should.
  dd if=/dev/zero of="$filler" bs=4k status=none 2>/dev/null || true
  wait_until "NOT SAVED" has_said log 'NOT SAVED'
  before="$(latest "$run")"
  [[ -e "$disk/checkpoints/$(printf 'step_%08d' "$before")/manifest.json" ]] || die "disk: the last good checkpoint is gone"
  rm "$filler"
  wait_until "a save after the disk had room again" has_saved "$run" "$((before + 5))"
  kill -TERM "$process"
  wait "$process" && die "disk: the run was not interrupted"
  resume "$run"
  umount "$disk"
  say "disk: filled at step $before; the run went on, saved again, and was resumed bit for bit"
}

trial_two_runs() {
  local process status=0
  layout 1
  command_of two
  "${command[@]}" >"$folder/log" 2>&1 &
  process=$!
  wait_until "a checkpoint" has_saved two 5
  "${command[@]}" --set checkpoint.resume=auto >"$folder/second.log" 2>"$folder/second.error" || status=$?
  [[ $status -eq 2 && "$(wc -l <"$folder/second.error")" -eq 1 ]] ||
    { cat "$folder/second.error" >&2 && die "two_runs: the second ended with $status, not with one line and 2"; }
  kill -TERM "$process"
  wait "$process" && die "two_runs: the first was not interrupted"
  resume two
  say "two_runs: the second was refused ($(cut -c 1-100 "$folder/second.error")...); the first lost nothing"
}

# signal_once NAME RANKS: the run saves on the signal, and is resumed.
signal_once() {
  local name="$1" ranks="$2" run="$1_$2" process
  layout "$ranks"
  command_of "$run" --set checkpoint.save_every=1000000
  # A background job of a script ignores SIGINT, and hands that on; a session of its own, with the default, does not.
  setsid python3 -c 'import os, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); os.execvp(sys.argv[1], sys.argv[1:])' \
    "${command[@]}" >"$folder/log" 2>&1 &
  process=$!
  wait_until "steps" has_steps "$run" 3
  kill "-$name" "$process"
  if [[ "$name" == USR1 ]]; then
    wait_until "a save" has_saved "$run" 1
    wait_until "steps after the save" has_steps "$run" "$(($(latest "$run") + 3))"
    kill -USR2 "$process"
  fi
  wait "$process" && die "signals: $run: the run was not interrupted"
  has_saved "$run" 3 || { tail -n 5 "$folder/log" >&2 && die "signals: $run: ended without a save"; }
  resume "$run"
}

trial_signals() {
  local name ranks done=()
  for ranks in "${rank_counts[@]}"; do
    for name in "${signals[@]}"; do
      signal_once "$name" "$ranks"
      done+=("$name/$ranks")
    done
  done
  say "signals: ${done[*]}: a checkpoint each, resumed bit for bit"
}

# trial_hosts: has its own way to say that it is left out.
trial_hosts() {
  local status=0
  "$TE_ROOT/scripts/hosts_trial.sh" --train "$executable" | sed "s/^/hosts: /" || status=${PIPESTATUS[0]}
  [[ $status -eq 0 || $status -eq 77 ]] || die "hosts: failed"
}

main() {
  local only="" trial started trials=(kills disk two_runs signals hosts)
  executable="$TE_ROOT/build/cpu/apps/te-train" kills=100 rank_counts=(1 2 4) signals=(TERM INT HUP USR1)
  read -ra mpirun <<<"mpirun --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 -n"
  if [[ $(id -u) -eq 0 ]]; then mpirun=("${mpirun[0]}" --allow-run-as-root "${mpirun[@]:1}"); fi
  while [[ $# -gt 0 ]]; do
    case "$1" in
      --short) kills=2 rank_counts=(2) trials=(kills disk) ;;
      --kills) kills="$2" && shift ;;
      --ranks) read -ra rank_counts <<<"$2" && shift ;;
      --only) only="$2" && shift ;;
      --train) executable="$2" && shift ;;
      --mpirun) read -ra mpirun <<<"$2" && shift ;;
      -h | --help) usage && exit 0 ;;
      *) die "unknown option $1; see --help" ;;
    esac
    shift
  done
  [[ -x "$executable" ]] || die "$executable: not found; build te-train or name it with --train"
  folder="$(mktemp -d)"
  trap 'mountpoint -q "$folder/disk" && umount "$folder/disk"; kill $(jobs -p) 2>/dev/null || true; rm -rf "$folder"' EXIT
  export OMP_NUM_THREADS=1
  write_config "$folder/trial.yaml"
  for trial in "${trials[@]}"; do
    if [[ -n "$only" && "$only" != "$trial" ]]; then continue; fi
    started=$EPOCHSECONDS
    "trial_$trial"
    say "$trial: $((EPOCHSECONDS - started)) s"
  done
}

main "$@"
