#!/usr/bin/env bash
# Trains on two emulated hosts: two network namespaces of this machine with their own hostnames, connected by a veth
# pair ("cable"). Open MPI starts CPU ranks on them and connects the ranks over TCP, as between real hosts.
#
#   scripts/hosts_trial.sh [--train PATH] [--only TRIAL]
#
#   table    the start screen and run.json name the hosts with their ranks
#   warning  a layout with tensor-parallel groups on both hosts gives a one-line warning with the keys that would help
#   bits     two layouts give bitwise the same checkpoints on two hosts as on one
#   death    a rank of the other host is killed: the job ends on both hosts, mpirun names rank and host, no process
#            remains
#   restart  the same run resumes from its last checkpoint, with fewer ranks on one host
#   cable    the cable is cut: mpirun detects the lost host by keepalives (oob_tcp_keepalive_time) and ends the job on
#            both hosts, before the ranks' watchdog would
#
#   --train  te-train executable (default: build/cpu/apps/te-train)
#   --only   run one trial (restart needs death)
#
# Namespaces need root. If they cannot be created, or mpirun is not Open MPI's, the script says so and exits with code
# 77. No traffic leaves the namespaces. It prints one line per trial, and exits with code 1 if one fails.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

hosts=(te-host-a te-host-b)
limit=120 # seconds that any job may take before it counts as hanging

# skip REASON: ends the script because the trials cannot run on this machine.
skip() {
  say "SKIPPED: $*"
  exit 77
}

# usage: the comment at the top of this file.
usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; }

# space HOST: the name of its network namespace.
space() { echo "$1-$$"; }

# on HOST COMMAND...: runs a command in the host's network namespace, with the host's name.
on() { "$folder/on" "$@"; }

# make_hosts: creates the namespaces, the cable, and the agent with which mpirun reaches a host.
make_hosts() {
  local number host
  cat >"$folder/on" <<AGENT
#!/usr/bin/env bash
# on HOST COMMAND...: replaces ssh between real hosts; as with ssh, the words form a command line for a shell.
host="\$1"
shift
exec ip netns exec "\$host-$$" unshare --uts sh -c 'hostname "\$1"; shift; exec sh -c "\$*"' sh "\$host" "\$@"
AGENT
  chmod +x "$folder/on"
  for host in "${hosts[@]}"; do
    ip netns add "$(space "$host")" 2>"$folder/why" || skip "cannot create network namespaces (needs root): $(cat "$folder/why")"
    ip -n "$(space "$host")" link set lo up
  done
  ip link add cable netns "$(space "${hosts[0]}")" type veth peer name cable netns "$(space "${hosts[1]}")" 2>"$folder/why" ||
    skip "cannot create veth pairs: $(cat "$folder/why")"
  for number in 0 1; do
    ip -n "$(space "${hosts[$number]}")" address add "10.213.77.$((number + 1))/24" dev cable
    ip -n "$(space "${hosts[$number]}")" link set cable up
  done
  [[ "$(on "${hosts[1]}" hostname)" == "${hosts[1]}" ]] || skip "cannot set hostnames in namespaces"
}

# remove_hosts: kills processes that still run in the namespaces, and removes the namespaces.
remove_hosts() {
  local host process
  for host in "${hosts[@]}"; do
    for process in $(ip netns pids "$(space "$host")" 2>/dev/null); do kill -KILL "$process" 2>/dev/null || true; done
    ip netns delete "$(space "$host")" 2>/dev/null || true
  done
  rm -rf "$folder"
}

# write_config FILE: writes the config of a Llama with four layers in FP8 on random tokens that saves every fifth step.
write_config() {
  cat >"$1" <<'YAML'
model: {family: llama, num_layers: 4, hidden_size: 64, ffn_hidden_size: 64, num_attention_heads: 4, vocab_size: 256,
        seq_length: 16}
precision: {fp8: hybrid, amax_history_len: 4}
training: {micro_batch_size: 2, global_batch_size: 8, train_steps: 10, device: cpu}
optimizer: {lr: 1.0e-3, decay: constant, decay_steps: 1000000}
data: {synthetic: true}
checkpoint: {save_every: 5, keep: 3}
YAML
}

# job RANKS_A RANKS_B RUN [ARGUMENT]...: sets the array `command` to the command line of a run with so many ranks per
# host. With 0 ranks on the second host all are on the first.
job() {
  local ranks=$(($1 + $2)) list="${hosts[0]}:$1" run="$3"
  [[ "$2" -eq 0 ]] || list+=",${hosts[1]}:$2"
  shift 3
  command=("$folder/on" "${hosts[0]}" timeout --kill-after=10 "$limit" mpirun --allow-run-as-root --bind-to none
    "${connection[@]}" --mca btl_tcp_if_include cable --mca mpi_yield_when_idle 1 -x OMP_NUM_THREADS
    ${LSAN_OPTIONS:+-x LSAN_OPTIONS} "${mpirun_options[@]}"
    --host "$list" -n "$ranks" "$executable" --config "$folder/hosts.yaml" --set "logging.directory=$folder/$run" "$@")
}

# choose_options: sets mpirun's options for reaching the other host and for keepalives; in Open MPI 5 they belong to
# PRRTE.
choose_options() {
  connection=(--mca plm rsh --mca plm_rsh_agent "$folder/on" --mca oob_tcp_if_include cable --mca btl "tcp,vader,self")
  runtime=--mca
  [[ "$(mpirun --version)" == *"Open MPI) 4."* ]] && return 0
  connection=(--prtemca plm ssh --prtemca plm_ssh_agent "$folder/on" --prtemca prte_if_include cable
    --mca btl "tcp,sm,self")
  runtime=--prtemca
}

# train LOG JOB...: runs a job that must succeed.
train() {
  local log="$folder/$1"
  shift
  job "$@"
  "${command[@]}" >"$log" 2>&1 || { cat "$log" >&2 && die "failed: ${command[*]}"; }
}

# said LOG WORDS: checks that the log contains these words, maybe across lines, as Open MPI 5 wraps its messages.
said() {
  tr -s " \n" " " <"$folder/$1" | grep -aF -- "$2" >/dev/null || { cat "$folder/$1" >&2 && die "$1 does not say: $2"; }
}

# wait_until LABEL COMMAND...: waits until the command succeeds, for at most `limit` seconds.
wait_until() {
  local label="$1" end=$((EPOCHSECONDS + limit))
  shift
  until "$@"; do
    [[ $EPOCHSECONDS -lt $end ]] || die "timed out waiting for $label"
    sleep 0.1
  done
}
has_steps() { [[ "$(grep -c "" "$folder/$1/loss.csv" 2>/dev/null)" -gt "$2" ]]; }
nothing_runs() { [[ -z "$(ip netns pids "$(space "${hosts[0]}")")$(ip netns pids "$(space "${hosts[1]}")")" ]]; }

# latest RUN: prints the step that `latest` names.
latest() {
  local name
  name="$(cat "$folder/$1/checkpoints/latest")"
  echo "$((10#${name#step_}))"
}

# rank_on HOST RANK: prints the process id of this rank on the host.
rank_on() {
  local process
  for process in $(ip netns pids "$(space "$1")"); do
    [[ "/proc/$process/exe" -ef "$executable" ]] || continue
    if grep -qzx "OMPI_COMM_WORLD_RANK=$2" "/proc/$process/environ"; then echo "$process"; fi
  done
}

trial_table() {
  train table.log 2 2 table --set parallel.tensor=2
  said table.log "4 ranks: tensor 2 x data 2 x pipeline 1, on 2 hosts, network between them"
  said table.log "${hosts[0]}: ranks 0-1, "
  said table.log "${hosts[1]}: ranks 2-3, "
  grep -q "warning.*parallel.tensor" "$folder/table.log" && die "table: unexpected warning about a layout within the hosts"
  python3 - "$folder/table/run.json" "${hosts[@]}" <<'PYTHON' || die "table: run.json does not have the hosts"
import json, sys
hosts = json.load(open(sys.argv[1]))["starts"][-1]["hosts"]
assert [(h["host"], h["ranks"]) for h in hosts] == [(sys.argv[2], "0-1"), (sys.argv[3], "2-3")], hosts
PYTHON
  say "table: $(grep -m 1 -o "^ranks .*" "$folder/table.log" | tr -s " ")"
}

trial_warning() {
  local line
  train warning.log 2 2 warning --set parallel.tensor=4 --set training.train_steps=1
  line="$(grep "parallel.tensor 4: ranks 0-3 are on 2 hosts (${hosts[0]}, ${hosts[1]})" "$folder/warning.log")" ||
    { cat "$folder/warning.log" >&2 && die "warning: missing"; }
  [[ "$(wc -l <<<"$line")" -eq 1 && "$line" == *"set parallel.tensor to 2"* ]] || die "warning: $line"
  mpirun_options=(--map-by node)
  train warning.log 2 2 scattered --set parallel.tensor=2 --set training.train_steps=1
  mpirun_options=()
  said warning.log "host by host (mpirun --map-by slot"
  say "warning: $line"
}

# same_bits NAME ARGUMENT...: compares ten steps on two hosts with ten steps on one host.
same_bits() {
  local name="$1" file files=0
  shift
  train bits.log 2 2 "two_$name" "$@"
  said bits.log "on 2 hosts"
  train bits.log 4 0 "one_$name" "$@"
  said bits.log "on one host"
  for file in "$folder/one_$name"/checkpoints/step_00000010/*.safetensors; do
    cmp "$file" "${file/\/one_/\/two_}" || die "bits: $name: $(basename "$file") differs"
    files=$((files + 1))
  done
  [[ $files -gt 0 ]] || die "bits: $name: no checkpoint"
}

trial_bits() {
  same_bits data --set parallel.tensor=2
  same_bits pipeline --set parallel.tensor=2 --set parallel.pipeline=2 --set parallel.schedule=1f1b
  say "bits: tensor 2 x data 2 and tensor 2 x pipeline 2 on two hosts: checkpoints after 10 steps are bitwise equal to one host's"
}

# start_endless RUN ARGUMENT...: starts a long job in the background as `process`; returns after it has saved.
start_endless() {
  job 2 2 "$@" --set training.train_steps=1000000
  "${command[@]}" >"$folder/$1.log" 2>&1 &
  process=$!
  wait_until "steps of $1" has_steps "$1" 12
}

# ended_soon TRIAL STATUS STARTED: checks that the job failed without hanging.
ended_soon() {
  local seconds=$((EPOCHSECONDS - $3))
  [[ "$2" -ne 0 && $seconds -lt $((limit / 2)) ]] && return 0
  cat "$folder/$1.log" >&2
  die "$1: the job ended with $2, $seconds s later"
}

trial_death() {
  local status=0 started victim
  start_endless death --set parallel.tensor=2
  victim="$(rank_on "${hosts[1]}" 3)"
  [[ "$victim" =~ ^[0-9]+$ ]] || die "death: no process of rank 3 on ${hosts[1]}: '$victim'"
  started=$EPOCHSECONDS
  kill -KILL "$victim"
  wait "$process" || status=$?
  ended_soon death "$status" "$started"
  said death.log "process rank 3 with PID"
  said death.log "on node ${hosts[1]} exited on signal 9"
  wait_until "the end of all processes" nothing_runs
  say "death: rank 3 on ${hosts[1]} was killed; the job ended on both hosts after $((EPOCHSECONDS - started)) s: $(
    tr -s " \n" " " <"$folder/death.log" | grep -ao "noticed that process.*signal 9")"
}

trial_restart() {
  local before
  before="$(latest death)"
  train restart.log 2 0 death --set parallel.tensor=2 --set checkpoint.resume=auto --set "training.train_steps=$((before + 5))"
  said restart.log "resumed from"
  [[ "$(latest death)" -eq $((before + 5)) ]] || die "restart: ended at step $(latest death)"
  awk -F, 'NR > 1 && $1 != NR - 1 { exit 1 }' "$folder/death/loss.csv" || die "restart: loss.csv lacks steps"
  say "restart: 4 ranks of two hosts saved step $before, 2 ranks of one host resumed and reached $((before + 5))"
}

trial_cable() {
  local status=0 started
  mpirun_options=("$runtime" oob_tcp_keepalive_time 4 "$runtime" oob_tcp_keepalive_intvl 2
    "$runtime" oob_tcp_keepalive_probes 3)
  start_endless cable --set parallel.tensor=2 --set parallel.timeout_seconds=30
  started=$EPOCHSECONDS
  ip -n "$(space "${hosts[1]}")" link set cable down
  wait "$process" || status=$?
  [[ "$runtime" == --mca ]] || status=1 # mpirun of Open MPI 5.0.7 reports the lost host, but exits with 0
  ended_soon cable "$status" "$started"
  said cable.log "${hosts[1]}"
  mpirun_options=()
  wait_until "the end of all processes" nothing_runs
  say "cable: cut; the job ended on both hosts after $((EPOCHSECONDS - started)) s: $(grep -am 1 "lost communication" "$folder/cable.log")"
}

main() {
  local only="" trial
  executable="$TE_ROOT/build/cpu/apps/te-train" mpirun_options=() connection=() runtime=""
  while [[ $# -gt 0 ]]; do
    case "$1" in
      --train) needs "a program" "$@" && executable="$2" && shift ;;
      --only) needs "a trial" "$@" && only="$2" && shift ;;
      -h | --help) usage && exit 0 ;;
      *) refuse "unknown option $1; see --help" ;;
    esac
    shift
  done
  [[ -x "$executable" ]] || die "$executable: not found; build te-train or set --train"
  for trial in ip unshare mpirun python3; do command -v "$trial" >/dev/null || skip "$trial is not installed"; done
  [[ "$(mpirun --version 2>&1)" == *"Open MPI"* ]] || skip "mpirun is not Open MPI's"
  [[ $(id -u) -eq 0 ]] || skip "network namespaces with names need root"
  folder="$(mktemp -d)"
  trap remove_hosts EXIT
  export OMP_NUM_THREADS=1
  make_hosts
  choose_options
  write_config "$folder/hosts.yaml"
  for trial in table warning bits death restart cable; do
    if [[ -n "$only" && "$only" != "$trial" ]]; then continue; fi
    "trial_$trial"
  done
}

main "$@"
