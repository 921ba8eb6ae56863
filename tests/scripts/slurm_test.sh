#!/usr/bin/env bash
# Tests scripts/slurm/te-train.sbatch with fake Slurm commands: when and how often a job is requeued, and that it then
# resumes from its last checkpoint (with te-train on one CPU rank).
#
#   slurm_test.sh SBATCH_SCRIPT TE_TRAIN
set -euo pipefail

script="$1" executable="$2"
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/bin"

# fail TEXT...: ends the test with the output of the last job.
fail() {
  cat "$folder/log" >&2
  printf 'FAILED: %s\n' "$*" >&2
  exit 1
}

# srun: records its arguments, and acts as the next word of `plan` says: an exit code, `node` (the node fails and the
# batch script is killed), `killed` (te-train is killed after a save), `train` (te-train trains five more steps) or
# `told` (the batch script receives SIGTERM while srun runs, and srun ends with 143).
cat >"$folder/bin/srun" <<'STUB'
#!/usr/bin/env bash
set -euo pipefail
echo "$*" >>"$STUBS/srun_calls"
read -r act rest <"$STUBS/plan"
echo "$rest" >"$STUBS/plan"
while [[ "$1" == --* ]]; do shift; done
case "$act" in
  node) kill -KILL "$PPID" ;;
  told) kill -TERM "$PPID" && exit 143 ;;
  train)
    step="$(cat "$STUBS/run/checkpoints/latest")"
    exec "$@" --set "training.train_steps=$((10#${step#step_} + 5))"
    ;;
  killed)
    "$@" --set training.train_steps=1000000 &
    for ((tick = 0; tick < 1200; ++tick)); do
      if [[ -e "$STUBS/run/checkpoints/latest" ]]; then break; fi
      sleep 0.05
    done
    kill -KILL $!
    wait $! || exit $?
    ;;
  *) exit "$act" ;;
esac
STUB
# scontrol: records that the job is requeued.
cat >"$folder/bin/scontrol" <<'STUB'
#!/usr/bin/env bash
[[ "$*" == "requeue 17" ]] || { echo "scontrol $*" >&2 && exit 1; }
touch "$STUBS/requeued"
STUB
# sbatch: runs the script, again as long as it is requeued; after a failed node only if the script has --requeue.
cat >"$folder/bin/sbatch" <<'STUB'
#!/usr/bin/env bash
set -euo pipefail
restarts=0
while :; do
  rm -f "$STUBS/requeued"
  status=0
  environment=(SLURM_JOB_ID=17 SLURM_SUBMIT_DIR="$STUBS" SLURM_CPUS_PER_TASK=1)
  [[ $restarts -eq 0 ]] || environment+=("SLURM_RESTART_COUNT=$restarts")
  env "${environment[@]}" bash "$@" || status=$?
  if [[ $status -eq 137 ]] && grep -qx '#SBATCH --requeue' "$1"; then touch "$STUBS/requeued"; fi
  [[ -e "$STUBS/requeued" ]] || exit "$status"
  restarts=$((restarts + 1))
done
STUB
chmod +x "$folder"/bin/*

# job PLAN [NAME=VALUE]...: submits a job with these variables in the environment; sets `status`, and `starts`, the
# number of srun calls.
job() {
  echo "$1" >"$folder/plan"
  shift
  rm -f "$folder/srun_calls"
  status=0
  env STUBS="$folder" PATH="$folder/bin:$PATH" TE_TRAIN="$executable" "$@" \
    sbatch "$script" "$folder/run.yaml" >"$folder/log" 2>&1 || status=$?
  starts="$(grep -c "" "$folder/srun_calls" 2>/dev/null || true)"
}

# expect STATUS STARTS: checks how the last job ended.
expect() { [[ "$status" == "$1" && "$starts" == "$2" ]] || fail "status $status after $starts starts, expected $1 after $2"; }

# said TEXT: checks that the last job printed this.
said() { grep -qF -- "$1" "$folder/log" || fail "does not say: $1"; }

# Not requeued: finished, refused, diverged, interrupted.
for code in 0 2 3 130; do
  job "$code"
  expect "$code" 1
done
expected="--mpi=pmix --cpus-per-task=1 .*$executable --config $folder/run.yaml --set checkpoint.resume=auto"
grep -q -- "$expected" "$folder/srun_calls" ||
  fail "srun was called as: $(cat "$folder/srun_calls")"

# After a failure, a killed rank and a failed node the job is requeued, until the run finishes.
job "1 137 node 0"
expect 0 4
said "ended with code 137; requeued, restart 2 of at most 10"

# The number of restarts is limited, by Slurm and by the script together.
job "1 1 1 1 1 1" TE_RESTARTS=3
expect 1 4
said "ended with code 1 after 3 restarts; not requeued"
job "node node node node node" TE_RESTARTS=3
expect 1 4
said "restarted 3 times (limit: TE_RESTARTS)"
job "1" TE_RESTARTS=0
expect 1 1

# A job that receives SIGTERM is not requeued.
job "told 0"
expect 143 1

# No config: one line.
status=0
env SLURM_SUBMIT_DIR="$folder" bash "$script" >"$folder/log" 2>&1 || status=$?
[[ $status -eq 2 && "$(wc -l <"$folder/log")" -eq 1 ]] || fail "without a config: $status"

# With te-train: after a kill following a save, the next start resumes from the checkpoint.
cat >"$folder/run.yaml" <<YAML
model: {family: llama, num_layers: 1, hidden_size: 32, ffn_hidden_size: 48, num_attention_heads: 4, vocab_size: 256,
        seq_length: 16}
training: {micro_batch_size: 2, global_batch_size: 2, train_steps: 10, device: cpu}
optimizer: {lr: 1.0e-3, decay: constant, decay_steps: 1000000}
data: {synthetic: true}
logging: {directory: $folder/run}
checkpoint: {save_every: 2, keep: 2}
YAML
job "killed train"
said "ended with code 137; requeued"
said "resumed from $folder/run/checkpoints/step_"
[[ "$status" -eq 0 && "$starts" -eq 2 ]] || fail "status $status after $starts starts"
awk -F, 'NR > 1 && $1 != NR - 1 { exit 1 }' "$folder/run/loss.csv" || fail "loss.csv lacks steps"
echo "slurm: a failed job is requeued a limited number of times and resumes from its checkpoint"
