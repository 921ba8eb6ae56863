#!/usr/bin/env bash
# Injects faults into small CPU runs, and checks that nothing is lost: the faults of docs/results/conformance/faults.md.
#
#   scripts/trials.sh [--short] [--kills N] [--ranks "1 2 4"] [--only TRIAL] [--train PATH] [--mpirun COMMAND]
#
#   kills     SIGKILL at random times, N times each on 1, 2 and 4 ranks (scripts/kill_test.sh)
#   disk      the disk of the checkpoints fills up during a run, and is freed later
#   two_runs  a second run is started in the folder of a running one
#   signals   SIGTERM, SIGINT, SIGHUP and SIGUSR1 on 1, 2 and 4 ranks; each run is resumed afterwards
#   hosts     two network namespaces as hosts: a rank dies, the cable is cut (scripts/hosts_trial.sh)
#
#   --short   for CI: 2 kills on 2 ranks, and the disk; tests/train tests the rest
#   --kills   kills for each number of ranks (default: 100)
#   --only    run one trial
#   --train   te-train executable (default: build/cpu/apps/te-train)
#   --mpirun  launcher for several ranks, without their number (default: mpirun without binding)
#
# The result of each trial must be bitwise equal to that of an undisturbed run. The disk is a tmpfs of 4 MiB, which
# needs root or user namespaces; without them the trial is skipped. Prints one line per trial; exits with code 1 if
# anything was lost.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# usage: the comment at the top of this file.
usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; }

# write_config FILE: writes the config of a Llama with two layers in FP8 on random tokens that saves every fifth step.
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

# layout RANKS: sets the arrays `launch` (launcher) and `keys` (config keys) for so many ranks.
layout() {
  launch=() keys=()
  if [[ $1 -eq 1 ]]; then return 0; fi
  launch=("${mpirun[@]}" "$1")
  keys=(--set parallel.tensor=2)
}

# command_of RUN [ARGUMENT]...: sets the array `command` to the command line of a run.
command_of() {
  local run="$1"
  shift
  command=("${launch[@]}" "$executable" --config "$folder/trial.yaml" "${keys[@]}" --set "logging.directory=$folder/$run" "$@")
}

# run_to_end LOG RUN [ARGUMENT]...: runs a job that must succeed.
run_to_end() {
  local log="$1"
  shift
  command_of "$@"
  "${command[@]}" >"$folder/$log" 2>&1 || { cat "$folder/$log" >&2 && die "failed: ${command[*]}"; }
}

# latest RUN: prints the step that `latest` names; 0 if there is none.
latest() {
  local name
  name="$(cat "$folder/$1/checkpoints/latest" 2>/dev/null)" || true
  if [[ "$name" =~ ^step_([0-9]+)$ ]]; then echo "$((10#${BASH_REMATCH[1]}))"; else echo 0; fi
}

# wait_until LABEL COMMAND...: waits until the command succeeds, for at most two minutes.
wait_until() {
  local label="$1" tick
  shift
  for ((tick = 0; tick < 2400; ++tick)); do
    if "$@"; then return 0; fi
    sleep 0.05
  done
  die "timed out waiting for $label"
}
has_saved() { [[ "$(latest "$1")" -ge "$2" ]]; }
has_steps() { [[ "$(grep -c "" "$folder/$1/loss.csv" 2>/dev/null)" -gt "$2" ]]; }
has_said() { grep -q "$2" "$folder/$1"; }

# compare RUN STEP: checks that the checkpoint of that step is bitwise equal to that of an undisturbed run of the same
# layout.
compare() {
  local run="$1" step="$2" name file
  run_to_end whole.log whole_"$run" --set "training.train_steps=$step" --set checkpoint.save_every=0
  name="$(printf 'step_%08d' "$step")"
  for file in "$folder/whole_$run/checkpoints/$name"/*.safetensors; do
    cmp "$file" "$folder/$run/checkpoints/$name/$(basename "$file")" || die "$run: $(basename "$file") differs"
  done
  # The log must contain all steps once, in order.
  awk -F, 'NR > 1 && $1 != NR - 1 { exit 1 }' "$folder/$run/loss.csv" || die "$run: loss.csv lacks steps"
  [[ "$(tail -n +2 "$folder/$run/loss.csv" | wc -l)" -eq "$step" ]] || die "$run: loss.csv does not end at step $step"
}

# resume RUN: resumes for five more steps, and compares.
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

# trial_disk: a file fills a disk of 4 MiB and is removed later.
trial_disk() {
  local disk="$folder/disk" run="full" filler process before
  mkdir "$disk"
  if ! mount -t tmpfs -o size=4m tmpfs "$disk" 2>/dev/null; then
    say "disk: SKIPPED: cannot mount a tmpfs (needs root or unshare -rm)"
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
  # Fills the disk completely: dd fails as expected.
  dd if=/dev/zero of="$filler" bs=4k status=none 2>/dev/null || true
  wait_until "NOT SAVED" has_said log 'NOT SAVED'
  before="$(latest "$run")"
  [[ -e "$disk/checkpoints/$(printf 'step_%08d' "$before")/manifest.json" ]] || die "disk: the last verified checkpoint is missing"
  rm "$filler"
  wait_until "a save after the disk was freed" has_saved "$run" "$((before + 5))"
  kill -TERM "$process"
  wait "$process" && die "disk: the run was not interrupted"
  resume "$run"
  umount "$disk"
  say "disk: filled at step $before; the run continued, saved again, and resumed bitwise"
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
    { cat "$folder/second.error" >&2 && die "two_runs: the second run ended with code $status, not with code 2 and one line"; }
  kill -TERM "$process"
  wait "$process" && die "two_runs: the first run was not interrupted"
  resume two
  say "two_runs: the second run was refused ($(cut -c 1-100 "$folder/second.error")...); the first lost nothing"
}

# signal_once NAME RANKS: checks that the run saves on the signal, and resumes it.
signal_once() {
  local name="$1" ranks="$2" run="$1_$2" process
  layout "$ranks"
  command_of "$run" --set checkpoint.save_every=1000000
  # Background jobs of a script ignore SIGINT, and so do their children; a new session with the default handler does
  # not.
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
  say "signals: ${done[*]}: one checkpoint each, resumed bitwise"
}

# trial_hosts: hosts_trial.sh itself prints if it is skipped.
trial_hosts() {
  local status=0
  "$TE_ROOT/scripts/hosts_trial.sh" --train "$executable" | sed "s/^/hosts: /" || status=${PIPESTATUS[0]}
  [[ $status -eq 0 || $status -eq 77 ]] || die "hosts: failed"
}

main() {
  local only="" trial started trials=(kills disk two_runs signals hosts)
  executable="$TE_ROOT/build/cpu/apps/te-train" kills=100 rank_counts=(1 2 4) signals=(TERM INT HUP USR1)
  read -ra mpirun <<<"mpirun --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 --mca pml ob1 --mca btl ^tcp,ofi,openib,uct,usnic -n"
  if [[ $(id -u) -eq 0 ]]; then mpirun=("${mpirun[0]}" --allow-run-as-root "${mpirun[@]:1}"); fi
  while [[ $# -gt 0 ]]; do
    case "$1" in
      --short) kills=2 rank_counts=(2) trials=(kills disk) ;;
      --kills) needs "a number" "$@" && kills="$2" && shift ;;
      --ranks) needs "numbers" "$@" && read -ra rank_counts <<<"$2" && shift ;;
      --only) needs "a trial" "$@" && only="$2" && shift ;;
      --train) needs "a program" "$@" && executable="$2" && shift ;;
      --mpirun) needs "a command" "$@" && read -ra mpirun <<<"$2" && shift ;;
      -h | --help) usage && exit 0 ;;
      *) refuse "unknown option $1; see --help" ;;
    esac
    shift
  done
  [[ -x "$executable" ]] || die "$executable: not found; build te-train or set --train"
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
