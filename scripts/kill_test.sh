#!/usr/bin/env bash
# Kills a small CPU training run repeatedly with SIGKILL at random times. Checks that every restart finds a valid
# checkpoint, and that weights, moments and FP8 state are finally bitwise equal to those of an uninterrupted run. The
# run saves after every step, so that many kills occur during a save.
#
#   scripts/kill_test.sh [N] [--train PATH] [--launch COMMAND] [--set KEY=VALUE]... [--seed S]
#
#   N           number of kills (default: 100)
#   --train     te-train executable (default: build/cpu/apps/te-train)
#   --launch    launcher for several ranks, for example "mpirun --oversubscribe -n 2"
#   --set       further keys, for example parallel.tensor=2
#   --seed      seed of the random times (default: the time of day)
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# usage: the comment at the top of this file.
usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; }

# write_config FILE: writes the config of a Llama with two layers in FP8 on random tokens.
write_config() {
  cat >"$1" <<'YAML'
model: {family: llama, num_layers: 2, hidden_size: 32, ffn_hidden_size: 48, num_attention_heads: 4, vocab_size: 256,
        seq_length: 16}
precision: {fp8: hybrid, amax_history_len: 4}
training: {micro_batch_size: 2, global_batch_size: 4, train_steps: 1000000, device: cpu}
optimizer: {lr: 1.0e-3, decay: constant, decay_steps: 1000000}
data: {synthetic: true}
logging: {every: 1000, fp8_stats_every: 0}
checkpoint: {save_every: 1, keep: 3, resume: auto}
YAML
}

# train RUN [--set KEY=VALUE]...: sets the array `command` to the command line of a run.
train() {
  local run="$1"
  shift
  command=("${launch[@]}" "$executable" --config "$folder/kill.yaml" "${overrides[@]}" --set "logging.directory=$folder/$run" "$@")
}

# latest_step RUN: prints the step that `latest` names; -1 if there is none.
latest_step() {
  local name
  name="$(cat "$folder/$1/checkpoints/latest" 2>/dev/null)" || true
  if [[ "$name" =~ ^step_([0-9]+)$ ]]; then echo "$((10#${BASH_REMATCH[1]}))"; else echo -1; fi
}

# restart: checks that a restart finds a checkpoint. It ends at once: the run is after its last step, or at its first.
restart() {
  local before="$1"
  train killed --set training.train_steps=1
  "${command[@]}" >"$folder/log" 2>&1 || { cat "$folder/log" >&2 && die "the restart failed"; }
  if [[ "$before" -gt 0 ]] && ! grep -q 'resumed from' "$folder/log"; then
    cat "$folder/log" >&2 && die "the restart found no checkpoint"
  fi
}

# kill_once: starts the run, kills all its processes after a random time, and checks the checkpoints.
kill_once() {
  local process step
  train killed
  setsid "${command[@]}" >"$folder/log" 2>&1 &
  process=$!
  disown  # otherwise the shell prints a message for every kill
  sleep "$(c_awk -v s="$startup" -v r="$RANDOM" 'BEGIN { printf "%.3f", s * (0.3 + 2.5 * r / 32768) }')"
  kill -0 "$process" 2>/dev/null || die "the run ended by itself: $(cat "$folder/log")"
  # mpirun's ranks have their own process groups, so all processes with the run's config are killed until none is left.
  while pkill -9 -f -- "$folder/kill.yaml"; do sleep 0.02; done
  while kill -0 "$process" 2>/dev/null; do sleep 0.02; done
  if compgen -G "$folder/killed/checkpoints/step_*.tmp" >/dev/null; then in_save=$((in_save + 1)); fi
  step="$(latest_step killed)"
  [[ "$step" -ge "$reached" ]] || die "latest went back from step $reached to $step"
  if [[ "$step" -gt "$reached" ]]; then advanced=$((advanced + 1)); fi
  reached="$step"
  restart "$reached"
  if [[ "$reached" -lt 1 ]]; then reached="$(latest_step killed)"; fi
}

main() {
  local kills=100 started=$EPOCHSECONDS before last file
  executable="$TE_ROOT/build/cpu/apps/te-train"
  launch=()
  overrides=()
  RANDOM=$((EPOCHSECONDS % 32768))
  while [[ $# -gt 0 ]]; do
    case "$1" in
      --train) needs "a program" "$@" && executable="$2" && shift ;;
      --launch) needs "a command" "$@" && read -ra launch <<<"$2" && shift ;;
      --set) needs "KEY=VALUE" "$@" && overrides+=(--set "$2") && shift ;;
      --seed) needs "a number" "$@" && RANDOM="$2" && shift ;;
      -h | --help) usage && exit 0 ;;
      [0-9]*) kills="$1" ;;
      *) refuse "unknown option $1; see --help" ;;
    esac
    shift
  done
  [[ -x "$executable" ]] || die "$executable: not found; build te-train or set --train"
  folder="$(mktemp -d)"
  trap 'rm -rf "$folder"' EXIT
  export OMP_NUM_THREADS=1
  write_config "$folder/kill.yaml"

  # The time of a start sets the scale of the random times.
  train first --set training.train_steps=1
  before="$(microseconds)"
  "${command[@]}" >"$folder/log" 2>&1 || { cat "$folder/log" >&2 && die "the run does not start"; }
  startup="$(c_awk -v us="$(($(microseconds) - before))" 'BEGIN { printf "%.3f", us / 1e6 }')"

  reached=-1 advanced=0 in_save=0
  for ((i = 1; i <= kills; ++i)); do kill_once; done
  last=$((reached + 5))
  train killed --set "training.train_steps=$last"
  "${command[@]}" >"$folder/log" 2>&1 || { cat "$folder/log" >&2 && die "the last restart failed"; }
  train whole --set "training.train_steps=$last" --set checkpoint.save_every=0 --set checkpoint.resume=never
  "${command[@]}" >"$folder/log" 2>&1 || { cat "$folder/log" >&2 && die "the uninterrupted run failed"; }
  for file in "$folder/whole/checkpoints/$(printf 'step_%08d' "$last")"/*.safetensors; do
    cmp "$file" "${file/\/whole\//\/killed\/}" || die "$(basename "$file") differs from the uninterrupted run's"
  done
  [[ "$(find "$folder/killed/checkpoints" -mindepth 1 | grep -c '\.tmp')" -eq 0 ]] || die "temporary folders remain"
  say "$kills kills, $in_save of them during a save, $advanced after a new checkpoint: every restart found a valid" \
    "checkpoint; the state after $last steps equals that of an uninterrupted run ($((EPOCHSECONDS - started)) s)"
}

main "$@"
